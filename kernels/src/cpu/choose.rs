//! Selection of the most likely tokens.

use super::Cpu;
use crate::backend::Largest;
use crate::simd::{Kernel, Simd};

/// [`Backend::choose`](crate::backend::Backend::choose) for rows of `dim` elements, one row per output.
pub(super) fn choose(
    cpu: &Cpu,
    x: &[f32],
    dim: usize,
    names: Option<&[u32]>,
    chosen: &mut [Largest],
) {
    let work = 2 * chosen.len() * dim;
    let tasks = x.chunks_exact(dim).zip(chosen);
    cpu.run(work, tasks, |(row, chosen)| Choose { row, names, chosen });
}

struct Choose<'a> {
    row: &'a [f32],
    names: Option<&'a [u32]>,
    chosen: &'a mut Largest,
}

impl Kernel for Choose<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        *self.chosen = Largest::of(self.row);
        if let Some(names) = self.names {
            self.chosen.index = names[self.chosen.index as usize];
        }
    }
}
