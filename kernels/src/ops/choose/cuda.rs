//! Choice of tokens on the device, and embedding of chosen tokens without a copy to the host.

use std::ops::Range;

use bytemuck::NoUninit;

use super::ChooseOp;
use crate::backend::Largest;
use crate::cuda::device::{Address, Grid, Memory};
use crate::cuda::memory::{Buffer, Weight};
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count, kernel};
use crate::ops::embed::cuda::RowSelection;

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "choose",
    text: include_str!("choose.cu"),
    compiled_for: CompiledFor::Single,
};

impl ChooseOp for Cuda {
    fn chosen(&self, n: usize) -> Chosen {
        Chosen::new(self, n)
    }

    fn choose(
        &self,
        x: &Buffer,
        dim: usize,
        names: Option<&[u32]>,
        chosen: &mut Chosen,
        places: Range<usize>,
    ) {
        assert!(dim > 0 && names.is_none_or(|names| names.len() == dim));
        let [tokens, values] = chosen.at(&places);
        let mut shared = self.shared();
        let args = Choose {
            x: x.first(places.len() * dim),
            names: names.map_or(Address::NONE, |names| shared.arrays.place(names)),
            tokens,
            values,
            dim: count(dim),
            unused: 0,
        };
        let grid = Grid::new([count(places.len()), 1, 1], 1024);
        // SAFETY: the arguments are the struct of the kernel; there are as many rows as places.
        unsafe { self.launch(kernel("choose", "choose"), grid, &args) };
    }

    fn download_chosen(&self, chosen: &Chosen, at: usize, dst: &mut [Largest]) {
        let [tokens, _] = chosen.at(&(at..at + dst.len()));
        // One transfer, including the memory between the tokens and their logits.
        let mut words = vec![0; chosen.len + dst.len()];
        // While the lock is held, no operation uses the address of a table.
        let _shared = self.shared();
        // SAFETY: the logits of these places are at that distance from their tokens.
        let read = unsafe {
            self.queue
                .read(tokens, bytemuck::cast_slice_mut(&mut words))
        };
        for (i, dst) in dst.iter_mut().enumerate() {
            *dst = Largest {
                index: words[i],
                value: match read {
                    Some(()) => f32::from_bits(words[chosen.len + i]),
                    None => f32::NAN,
                },
            };
        }
    }

    fn embed_chosen(&self, table: &Weight, chosen: &Chosen, places: &[usize], out: &mut Buffer) {
        assert!(places.iter().all(|&place| place < chosen.len));
        let out = out.first_mut(places.len() * table.n_cols);
        let words: Vec<u32> = places.iter().map(|&place| count(place)).collect();
        let mut shared = self.shared();
        let which = RowSelection::Chosen {
            tokens: chosen.memory.address(),
            places: self.table(&mut shared, &words),
        };
        self.decode_rows(table, which, places.len(), out);
    }
}

/// Chosen tokens and their logits.
pub struct Chosen {
    /// All tokens, then all logits.
    memory: Memory,
    len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Choose {
    x: Address,
    names: Address,
    tokens: Address,
    values: Address,
    dim: u32,
    unused: u32,
}

impl Chosen {
    pub(crate) fn new(cuda: &Cuda, len: usize) -> Chosen {
        let memory = cuda.filled(0, 2 * len);
        Chosen { memory, len }
    }

    /// Returns the address of the first of `n` indices, from index `at` on.
    pub(crate) fn indices(&self, at: usize, n: usize) -> Address {
        self.at(&(at..at + n))[0]
    }

    fn at(&self, places: &Range<usize>) -> [Address; 2] {
        assert!(places.start <= places.end && places.end <= self.len);
        [places.start, self.len + places.start]
            .map(|word| self.memory.address().offset(word * size_of::<u32>()))
    }
}
