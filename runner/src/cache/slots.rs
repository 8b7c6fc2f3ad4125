//! Which slot holds which state of a sequence's recurrent layers.
//!
//! The state after position `p` lies in slot `p % n` of a ring, and each step reads the slot before
//! and writes its own. So the last `n` states are always there to return to, and keeping them costs
//! no copy. A run of more tokens than that would leave no state of before: there is one slot more, and
//! the slot with that state changes places with it. This checkpoint costs no copy either.

/// The slots of one sequence.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    /// The slot of each place of the ring.
    ring: Vec<usize>,
    /// The slot outside the ring.
    spare: usize,
    /// Length of the text whose state the spare slot holds.
    checkpoint: Option<u32>,
    /// First position whose state is still in the ring.
    oldest: u32,
    /// Behind the last position whose state is in the ring.
    end: u32,
}

impl Slots {
    /// Slots of a sequence of which `n_rollback` states behind the newest are kept.
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

    /// The slot of the state after a position that is held.
    pub(super) fn of(&self, position: u32) -> usize {
        match self.checkpoint {
            Some(len) if len == position + 1 => self.spare,
            _ => self.ring[self.place(position)],
        }
    }

    /// The longest beginning of no more than `len` positions whose state there is, and its slot.
    pub(super) fn nearest(&self, len: u32) -> Option<(u32, usize)> {
        let held = match len > self.oldest {
            true => len,
            false => self.checkpoint.filter(|&checkpoint| checkpoint <= len)?,
        };
        Some((held, self.of(held - 1)))
    }

    /// The slot for the state after the next position.
    pub(super) fn write(&mut self, position: u32) -> usize {
        self.end = position + 1;
        self.oldest = self
            .oldest
            .max(self.end.saturating_sub(self.ring.len() as u32));
        self.ring[self.place(position)]
    }

    /// Keeps the state after `len` positions, if a run of `n` tokens would leave nothing of it.
    pub(super) fn before_run(&mut self, len: u32, n: usize) {
        let stays = n < self.ring.len();
        if stays || len <= self.oldest || self.checkpoint == Some(len) {
            return;
        }
        let place = self.place(len - 1);
        std::mem::swap(&mut self.ring[place], &mut self.spare);
        if let Some(earlier) = self.checkpoint.replace(len) {
            // Its state was only there.
            self.oldest = self.oldest.max(earlier);
        }
    }

    /// Goes back to the state after `len` positions, or else to the checkpoint. Returns the length
    /// of the text whose state that is; `None` if there is no state to go back to.
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
