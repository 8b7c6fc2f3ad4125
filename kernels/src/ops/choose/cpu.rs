//! Selection of the most likely tokens.

use std::ops::Range;

use bumpalo::collections::Vec;

use super::ChooseOp;
use crate::backend::Largest;
use crate::cpu::Cpu;
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::weight::Weight;
use crate::ops::embed::cpu::embed_rows;
use crate::simd::{Kernel, Simd};

impl ChooseOp for Cpu {
    fn chosen(&self, n: usize) -> Self::Chosen {
        let value = f32::NAN;
        std::vec![Largest { index: 0, value }; n]
    }

    fn choose(
        &self,
        x: &Buffer,
        dim: usize,
        names: Option<&[u32]>,
        chosen: &mut Self::Chosen,
        places: Range<usize>,
    ) {
        let chosen = &mut chosen[places];
        let rows = &x[..chosen.len() * dim];
        let n_part = dim.div_ceil(PART);
        let arena = Arena::new();
        let value = f32::NAN;
        let found = arena.filled(Largest { index: 0, value }, chosen.len() * n_part);
        let parts = rows.chunks_exact(dim).flat_map(|row| row.chunks(PART));
        let tasks = Vec::from_iter_in(parts.zip(&mut *found), &arena);
        self.run(2 * rows.len(), tasks, |(part, found)| Find { part, found });
        for (chosen, parts) in chosen.iter_mut().zip(found.chunks_exact(n_part)) {
            *chosen = Largest::of_parts(parts, PART);
            if let Some(names) = names {
                chosen.index = names[chosen.index as usize];
            }
        }
    }

    fn download_chosen(&self, chosen: &Self::Chosen, at: usize, dst: &mut [Largest]) {
        dst.copy_from_slice(&chosen[at..at + dst.len()]);
    }

    fn embed_chosen(
        &self,
        table: &Weight,
        chosen: &Self::Chosen,
        places: &[usize],
        out: &mut Buffer,
    ) {
        let tokens = places.iter().map(|&place| chosen[place].index);
        embed_rows(table, tokens, out);
    }
}

/// Elements of a row that a task looks at. A thread reads about those that it has just written, as a product.
const PART: usize = 1 << 13;

/// Finds the largest element of a part.
struct Find<'a> {
    part: &'a [f32],
    found: &'a mut Largest,
}

impl Kernel for Find<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        *self.found = Largest::of(self.part);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::backend::Backend;
    use crate::cpu::CpuConfig;

    proptest! {
        /// Equal elements, zeros of either sign, and numbers that are not finite, in any part.
        #[test]
        fn parts_have_the_largest_element_of_the_row(
            odd in prop::collection::vec(
                (0..3 * PART - 5, select(vec![0.0, -0.0, 1.0, f32::NAN, f32::INFINITY])),
                0..8,
            ),
        ) {
            let dim = 3 * PART - 5;
            let mut rows = vec![-1.0; 2 * dim];
            for (i, x) in odd {
                rows[dim + i] = x;
            }
            let cpu = Cpu::new(CpuConfig::default()).unwrap();
            let mut x = cpu.buffer(rows.len());
            cpu.upload(&rows, &mut x, 0);
            let mut chosen = cpu.chosen(3);
            cpu.choose(&x, dim, None, &mut chosen, 1..3);
            prop_assert_eq!(chosen[1], Largest { index: 0, value: -1.0 });
            let expected = Largest::of(&rows[dim..]);
            prop_assert_eq!(chosen[2].index, expected.index);
            prop_assert_eq!(chosen[2].value.to_bits(), expected.value.to_bits());
        }
    }
}
