//! Selection of the most likely tokens.

use std::ops::Range;

use super::ChooseOp;
use crate::backend::Largest;
use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::weight::Weight;
use crate::ops::embed::cpu::embed_rows;
use crate::simd::{Kernel, Simd};

impl ChooseOp for Cpu {
    fn chosen(&self, n: usize) -> Vec<Largest> {
        let value = f32::NAN;
        vec![Largest { index: 0, value }; n]
    }

    fn choose(
        &self,
        x: &Buffer,
        dim: usize,
        names: Option<&[u32]>,
        chosen: &mut Vec<Largest>,
        places: Range<usize>,
    ) {
        let chosen = &mut chosen[places];
        let work = 2 * chosen.len() * dim;
        let tasks = x.chunks_exact(dim).zip(chosen);
        self.run(work, tasks, |(row, chosen)| Choose { row, names, chosen });
    }

    fn download_chosen(&self, chosen: &Vec<Largest>, at: usize, dst: &mut [Largest]) {
        dst.copy_from_slice(&chosen[at..at + dst.len()]);
    }

    fn embed_chosen(
        &self,
        table: &Weight,
        chosen: &Vec<Largest>,
        places: &[usize],
        out: &mut Buffer,
    ) {
        let tokens = places.iter().map(|&place| chosen[place].index);
        embed_rows(table, tokens, out);
    }
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
