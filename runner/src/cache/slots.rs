//! Slots for the states of a sequence's recurrent layers.
//!
//! The state after position `p` is stored in slot `p % n` of a ring; each step reads the previous
//! slot and writes its own. The last `n` states are therefore always available for rollback,
//! without a copy. A run of more tokens would overwrite all earlier states, so there is one spare
//! slot: it is swapped with the slot of the state before the run. This checkpoint needs no copy
//! either.

/// The slots of one sequence.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    /// The slot of each ring entry.
    ring: Vec<usize>,
    /// The slot outside the ring.
    spare: usize,
    /// Length of the text whose state the spare slot holds.
    checkpoint: Option<u32>,
    /// First position whose state is still in the ring.
    oldest: u32,
    /// One past the last position whose state is in the ring.
    end: u32,
}

impl Slots {
    /// Returns the number of slots of a sequence: `n_rollback` older states, the newest one, and a
    /// spare.
    pub fn number(n_rollback: usize) -> usize {
        n_rollback + 2
    }

    pub(super) fn new(seq: usize, n_rollback: usize) -> Slots {
        let n = Slots::number(n_rollback);
        Slots {
            ring: (seq * n..(seq + 1) * n - 1).collect(),
            spare: (seq + 1) * n - 1,
            ..Slots::default()
        }
    }

    pub(super) fn restart(&mut self, at: u32) {
        (self.oldest, self.end) = (at, at);
        self.checkpoint = None;
    }

    fn place(&self, position: u32) -> usize {
        position as usize % self.ring.len()
    }

    /// Returns the slot of the state after a position that is kept.
    pub(super) fn of(&self, position: u32) -> usize {
        match self.checkpoint {
            Some(len) if len == position + 1 => self.spare,
            _ => self.ring[self.place(position)],
        }
    }

    /// Returns the longest prefix of at most `len` positions whose state is kept, and its slot.
    pub(super) fn nearest(&self, len: u32) -> Option<(u32, usize)> {
        let held = match len > self.oldest {
            true => len,
            false => self.checkpoint.filter(|&checkpoint| checkpoint <= len)?,
        };
        Some((held, self.of(held - 1)))
    }

    /// Returns the slot for the state after the next position.
    pub(super) fn write(&mut self, position: u32) -> usize {
        self.end = position + 1;
        self.oldest = self
            .oldest
            .max(self.end.saturating_sub(self.ring.len() as u32));
        self.ring[self.place(position)]
    }

    /// Makes the state after `len` positions the checkpoint, if a run of `n` tokens would overwrite
    /// all states.
    pub(super) fn before_run(&mut self, len: u32, n: usize) {
        let stays = n < self.ring.len();
        if stays || len <= self.oldest || self.checkpoint == Some(len) {
            return;
        }
        let place = self.place(len - 1);
        std::mem::swap(&mut self.ring[place], &mut self.spare);
        if let Some(earlier) = self.checkpoint.replace(len) {
            // The state of the previous checkpoint existed only in the spare slot.
            self.oldest = self.oldest.max(earlier);
        }
    }

    /// Rolls back to the state after `len` positions, or else to the checkpoint. Returns the length
    /// of the text whose state that is; `None` if there is no such state.
    pub(super) fn truncate(&mut self, len: u32) -> Option<u32> {
        self.checkpoint = self.checkpoint.filter(|&checkpoint| checkpoint <= len);
        if len > self.oldest || self.checkpoint == Some(len) {
            self.end = len;
            self.oldest = self.oldest.min(len);
            return Some(len);
        }
        let left = self.checkpoint?;
        (self.oldest, self.end) = (left, left);
        Some(left)
    }
}
