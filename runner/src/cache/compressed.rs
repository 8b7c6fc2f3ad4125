//! Compressed positions of one attention layer, and the rows of the last positions that are not compressed yet.
//!
//! A compressed row is a function of the rows of its group of positions, and of the group before it where groups
//! overlap. It is computed when the last position of the group is evaluated. The rows of the last positions are kept in
//! a ring, so after a rollback the group is computed again from the same rows. The rows before every multiple of
//! [`MARK_EVERY`] positions are kept, too: a longer rollback returns to such a position.

use std::ops::Range;

use kernels::backend::{Backend, CacheShape, CompressionShape, SourceRow};
use schemas::arch::{Compressed, Hparams};

use super::{CacheTypes, Kv};
use crate::batch::Run;
use crate::error::ModelError;

/// A multiple of all ratios. Sequences can be rolled back to the multiples of it.
const MARK_EVERY: u32 = 256;

/// Caches of one attention layer with compressed positions.
pub struct CompressedKv<B: Backend> {
    /// Keys, which are also values, of every position.
    pub kv: Kv<B>,
    /// Keys, which are also values, of compressed positions.
    pub main: CompressedRows<B>,
    /// Keys by which compressed positions are chosen.
    pub indexer: Option<CompressedRows<B>>,
    /// The layer's group size.
    pub ratio: u64,
    groups: Groups,
}

/// Compressed rows of one width.
pub struct CompressedRows<B: Backend> {
    /// One row per group of positions, sequences one after another.
    pub cache: B::Cache,
    /// Rows of positions that are not compressed yet.
    pub kept: B::Buffer,
    shape: RowsShape,
}

/// Sizes of compressed rows of one width.
#[derive(Clone, Copy)]
pub(super) struct RowsShape {
    pub(super) cache: CacheShape,
    /// Elements of a kept row.
    kept_width: usize,
    has_rows: bool,
}

impl RowsShape {
    /// Returns the bytes of the kept rows, if there are `n_slot`.
    pub(super) fn kept_bytes(&self, n_slot: u128) -> u128 {
        n_slot * self.kept_width as u128 * size_of::<f32>() as u128
    }
}

/// Groups of positions that are compressed to one, and the rows that are kept of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// Positions of a group.
    ratio: u32,
    /// True if a compressed position also has the group before it.
    overlaps: bool,
    n_ctx: u32,
    n_rollback: u32,
}

impl Groups {
    /// Returns the groups of a block; `None` if it has none.
    pub(super) fn of(
        hparams: &Hparams,
        block: u32,
        n_ctx: usize,
        n_rollback: usize,
    ) -> Option<Groups> {
        let ratio = hparams.of_block(block).compressed.ratio;
        let is_head = block >= hparams.n_layer;
        (ratio > 0 && !is_head).then(|| Groups {
            ratio: ratio as u32,
            overlaps: Compressed::has_indexer(ratio),
            n_ctx: u32::try_from(n_ctx).unwrap_or(u32::MAX),
            n_rollback: u32::try_from(n_rollback).unwrap_or(u32::MAX),
        })
    }

    /// Returns the group size.
    pub(super) fn ratio(&self) -> u64 {
        self.ratio.into()
    }

    /// Returns the number of compressed positions of a sequence.
    fn n_row(&self) -> usize {
        (self.n_ctx / self.ratio) as usize
    }

    /// Returns the number of positions whose rows a group can need when its last one is evaluated.
    fn n_needed(&self) -> u32 {
        self.ratio * (1 + u32::from(self.overlaps)) - 1
    }

    /// Returns the number of rows in the ring.
    fn n_ring(&self) -> u32 {
        self.n_needed().saturating_add(self.n_rollback)
    }

    /// Returns the number of rows that are kept before a multiple of [`MARK_EVERY`].
    fn n_marked(&self) -> u32 {
        if self.overlaps { self.ratio } else { 0 }
    }

    /// Returns the numbers of slots of a sequence: for the next group, and for rollback.
    pub(super) fn n_slots(&self) -> (u128, u128) {
        let marks = u128::from(self.n_ctx / MARK_EVERY) * u128::from(self.n_marked());
        (u128::from(self.n_needed()) + marks, self.n_rollback.into())
    }

    fn n_slot(&self) -> usize {
        let (newest, rollback) = self.n_slots();
        (newest + rollback) as usize
    }

    /// Checks whether the row of a position is kept for good.
    fn is_marked(&self, position: u32) -> bool {
        let before = MARK_EVERY - self.n_marked();
        let mark = position / MARK_EVERY;
        position % MARK_EVERY >= before && mark < self.n_ctx / MARK_EVERY
    }

    /// Returns the slot of a position's row.
    fn slot(&self, seq: usize, position: u32) -> usize {
        let in_sequence = match self.is_marked(position) {
            true => {
                let mark = position / MARK_EVERY;
                let at = position % MARK_EVERY - (MARK_EVERY - self.n_marked());
                self.n_ring() + mark * self.n_marked() + at
            }
            false => position % self.n_ring(),
        };
        seq * self.n_slot() + in_sequence as usize
    }

    /// Returns the first position whose row the next group needs, if the next position is `len`.
    fn first_needed(&self, len: u32) -> u32 {
        let start = len / self.ratio * self.ratio;
        start.saturating_sub(if self.overlaps { self.ratio } else { 0 })
    }

    /// Checks whether all rows before position `len` are there that the next group needs. The ring has those from
    /// `oldest` on.
    pub(super) fn has(&self, len: u32, start: u32, oldest: u32) -> bool {
        let mut needed = self.first_needed(len).max(start)..len;
        needed.all(|position| position >= oldest || self.is_marked(position))
    }

    /// Returns the first position whose row is in the ring after rows up to `len` were stored.
    pub(super) fn oldest(&self, len: u32) -> u32 {
        len.saturating_sub(self.n_ring())
    }

    /// Appends the rows that a run of tokens reads and writes. `state` are the start of the sequence and its length before.
    pub(super) fn place(&self, run: &Run, [start, len]: [u32; 2], places: &mut GroupPlaces) {
        let Run { seq, rows } = run;
        let first_row = seq * self.n_row();
        let end = len + rows.len() as u32;
        for (position, row) in (len..end).zip(rows.clone()) {
            let n_visible = (position + 1) / self.ratio;
            let first = (start / self.ratio).min(n_visible);
            places
                .visible
                .push(first_row + first as usize..first_row + n_visible as usize);
            if self.is_marked(position) || end - position <= self.n_ring() {
                places.pairs.push((row, self.slot(*seq, position)));
            }
            if !(position + 1).is_multiple_of(self.ratio) {
                continue;
            }
            let group = position / self.ratio;
            let n_source = i64::from(self.n_needed() + 1);
            for source in i64::from(position) + 1 - n_source..=i64::from(position) {
                places.sources.push(match u32::try_from(source) {
                    Ok(source) if source >= len => {
                        SourceRow::Batch(rows.start + (source - len) as usize)
                    }
                    Ok(source) if source >= start => SourceRow::Kept(self.slot(*seq, source)),
                    _ => SourceRow::Missing,
                });
            }
            places.rows.push(first_row + group as usize);
            places.positions.push(group * self.ratio);
        }
    }
}

/// Returns the longest length up to `len` to which a sequence with these groups can be rolled back.
pub(super) fn nearest(groups: &[(Groups, u32)], start: u32, len: u32) -> Option<u32> {
    let has = |len: u32| {
        groups
            .iter()
            .all(|(groups, oldest)| groups.has(len, start, *oldest))
    };
    let mark = len / MARK_EVERY * MARK_EVERY;
    [len, mark].into_iter().find(|&len| len > start && has(len))
}

/// Rows that a batch reads and writes in layers of one ratio.
#[derive(Clone, Debug, Default)]
pub struct GroupPlaces {
    /// The ratio.
    pub ratio: u64,
    /// Rows that are compressed, for each group that is complete.
    pub sources: Vec<SourceRow>,
    /// Cache row of each of these groups, and its position.
    pub rows: Vec<usize>,
    /// First positions of these groups.
    pub positions: Vec<u32>,
    /// Rows of the batch that are kept, and their slots.
    pub pairs: Vec<(usize, usize)>,
    /// Compressed rows that each token sees.
    pub visible: Vec<Range<usize>>,
}

impl GroupPlaces {
    pub(super) fn clear(&mut self, ratio: u64) {
        self.ratio = ratio;
        self.sources.clear();
        self.rows.clear();
        self.positions.clear();
        self.pairs.clear();
        self.visible.clear();
    }
}

/// Returns the shapes of the compressed rows of a block: of keys, and of keys of the indexer, if it has one.
pub(super) fn shapes(
    hparams: &Hparams,
    groups: &Groups,
    types: CacheTypes,
    n_seq: usize,
) -> Result<Vec<RowsShape>, ModelError> {
    let mut widths = vec![hparams.head_dim];
    if groups.overlaps {
        widths.push(hparams.compressed.indexer_dim);
    }
    let shape = |head_dim: u64| {
        let block_len = types.k.block_len();
        if !head_dim.is_multiple_of(block_len as u64) {
            return Err(ModelError::CacheType {
                element: types.k,
                block_len,
                head_dim,
            });
        }
        let n_rows = n_seq.saturating_mul(groups.n_row());
        let rows = CompressionShape {
            ratio: groups.ratio as usize,
            dim: head_dim as usize,
            overlaps: groups.overlaps,
        };
        Ok(RowsShape {
            cache: CacheShape {
                n_rows,
                n_head: 1,
                head_dim: head_dim as usize,
                element: types.k,
            },
            kept_width: 2 * rows.width(),
            has_rows: n_rows > 0,
        })
    };
    widths.into_iter().map(shape).collect()
}

impl<B: Backend> CompressedKv<B> {
    pub(super) fn new(
        backend: &B,
        kv: Kv<B>,
        groups: Groups,
        shapes: &[RowsShape],
        n_seq: usize,
    ) -> CompressedKv<B> {
        let n_slot = n_seq * groups.n_slot();
        let mut rows = shapes.iter().map(|&shape| CompressedRows {
            cache: backend.cache(&shape.cache),
            kept: backend.buffer(n_slot * shape.kept_width),
            shape,
        });
        CompressedKv {
            kv,
            main: rows.next().expect("keys have a shape"),
            indexer: rows.next(),
            ratio: groups.ratio(),
            groups,
        }
    }

    /// Copies the rows of a sequence from position `start` to `len` to another sequence.
    pub(super) fn copy(&mut self, backend: &B, from: usize, to: usize, [start, len]: [u32; 2]) {
        let groups = self.groups;
        let row = |seq: usize, group: u32| seq * groups.n_row() + group as usize;
        let (first, end) = (start / groups.ratio, len / groups.ratio);
        let n_slot = groups.n_slot();
        for rows in [&mut self.main].into_iter().chain(&mut self.indexer) {
            if rows.shape.has_rows && end > first {
                let n = (end - first) as usize;
                backend.copy_cached(&mut rows.cache, row(from, first), row(to, first), n);
            }
            let len = n_slot * rows.shape.kept_width;
            backend.copy_within(&mut rows.kept, from * len, to * len, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that a group reads are those of its positions, after runs of any length and rollbacks to any position.
    #[test]
    fn kept_rows_are_those_of_the_text() {
        for (ratio, overlaps) in [(4, true), (128, false)] {
            let groups = Groups {
                ratio,
                overlaps,
                n_ctx: 1000,
                n_rollback: 5,
            };
            let n_source = groups.n_needed() + 1;
            let mut slots = vec![None; groups.n_slot()];
            // Every evaluated token has a number of its own.
            let (mut text, mut numbers) = (Vec::new(), 0..);
            let (mut oldest, mut n_groups, mut lens) = (0, 0, Vec::new());
            let moves = [
                (300, 2),
                (1, 1),
                (40, 70),
                (7, 5),
                (270, 15),
                (9, 3),
                (400, 390),
                (80, 600),
                (600, 5),
                (130, 5),
            ];
            for (n, n_back) in moves {
                let len = text.len() as u32;
                let mut places = GroupPlaces::default();
                let rows = 0..n;
                groups.place(&Run { seq: 0, rows }, [0, len], &mut places);
                text.extend(numbers.by_ref().take(n));
                let of_groups = places.sources.chunks_exact(n_source as usize);
                for (&first, sources) in places.positions.iter().zip(of_groups) {
                    let positions = i64::from(first + ratio) - i64::from(n_source)..;
                    for (position, source) in positions.zip(sources) {
                        let found: Option<i32> = match *source {
                            SourceRow::Missing => None,
                            SourceRow::Batch(row) => Some(text[len as usize + row]),
                            SourceRow::Kept(slot) => slots[slot],
                        };
                        let position = usize::try_from(position).ok();
                        assert_eq!(found, position.map(|position| text[position]));
                    }
                    n_groups += 1;
                }
                for &(row, slot) in &places.pairs {
                    slots[slot] = Some(text[len as usize + row]);
                }
                let end = text.len() as u32;
                oldest = groups.oldest(end).max(oldest);
                let wanted = end.saturating_sub(n_back);
                let left = nearest(&[(groups, oldest)], 0, wanted).unwrap_or(0);
                assert!(n_back > 5 || left == wanted, "{n_back} of {end}");
                oldest = left.min(oldest);
                lens.push((wanted, left));
                text.truncate(left as usize);
            }
            assert!(n_groups > 0);
            let returns = |(wanted, left): &(u32, u32)| left < wanted && *left > 0;
            assert!(lens.iter().any(returns), "{lens:?}");
        }
    }
}
