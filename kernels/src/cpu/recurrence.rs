//! Steps of recurrent operations, whose state has independent columns.

use std::ops::Range;

use super::columns::ColumnsMut;
use crate::backend::Step;
use crate::simd::{LANES, Simd};

/// One step of one head. The state is `(rows, dim)`.
pub(crate) trait Recurrence {
    /// Columns of the state, and elements of the result.
    fn dim(&self) -> usize;

    /// Advances some columns of the state from `old` to `new`, in place if there is no `old`, in `N` chunks.
    fn advance_columns<S: Simd, const N: usize>(
        &self,
        simd: S,
        columns: &StateColumns,
        old: Option<&[f32]>,
        new: &mut [f32],
        out: &mut [f32],
    );

    /// Advances the state of a head by a step: from one slot to another, in place, or from zeros. `slots` are the
    /// head's states of `len` elements.
    #[inline(always)]
    fn advance<S: Simd>(
        &self,
        simd: S,
        step: &Step,
        slots: &mut ColumnsMut<'_>,
        len: usize,
        out: &mut [f32],
    ) {
        match step.read {
            Some(read) if read != step.write => {
                let [old, new] = slots.two_rows([read, step.write], 0..len);
                self.advance_all(simd, Some(old), new, out);
            }
            Some(_) => self.advance_all(simd, None, slots.row(step.write, 0..len), out),
            None => {
                let state = slots.row(step.write, 0..len);
                state.fill(0.0);
                self.advance_all(simd, None, state, out);
            }
        }
    }

    /// Advances all columns, two chunks at a time: their sums overlap, and this part of the state stays in the L1
    /// cache from one pass over it to the next.
    #[inline(always)]
    fn advance_all<S: Simd>(&self, simd: S, old: Option<&[f32]>, new: &mut [f32], out: &mut [f32]) {
        let dim = self.dim();
        let tiled = dim - dim % (2 * LANES);
        for start in (0..tiled).step_by(2 * LANES) {
            let columns = StateColumns {
                start,
                end: start + 2 * LANES,
            };
            self.advance_columns::<S, 2>(simd, &columns, old, new, out);
        }
        for start in (tiled..dim).step_by(LANES) {
            let columns = StateColumns {
                start,
                end: dim.min(start + LANES),
            };
            self.advance_columns::<S, 1>(simd, &columns, old, new, out);
        }
    }
}

/// Some columns of a state, in chunks of up to [`LANES`].
pub(crate) struct StateColumns {
    start: usize,
    end: usize,
}

impl StateColumns {
    /// Returns the columns of chunk `n` in the state row that begins at element `row`.
    #[inline(always)]
    pub(crate) fn chunk(&self, row: usize, n: usize) -> Range<usize> {
        let start = self.start + n * LANES;
        row + start..row + self.end.min(start + LANES)
    }
}
