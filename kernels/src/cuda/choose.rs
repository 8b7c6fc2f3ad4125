//! Choice of tokens on the device, and embedding of chosen tokens without a copy to the host.

use std::ops::Range;

use bytemuck::NoUninit;

use super::device::{Address, Grid, Memory};
use super::memory::{Buffer, Weight};
use super::rows::Rows;
use super::{Cuda, count, kernel};
use crate::backend::Largest;

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
    pub(super) fn new(cuda: &Cuda, len: usize) -> Chosen {
        let memory = cuda.filled(0, 2 * len);
        Chosen { memory, len }
    }

    fn at(&self, places: &Range<usize>) -> [Address; 2] {
        assert!(places.start <= places.end && places.end <= self.len);
        [places.start, self.len + places.start]
            .map(|word| self.memory.address().offset(word * size_of::<u32>()))
    }
}

/// [`Backend::choose`](crate::backend::Backend::choose).
pub(super) fn choose(
    cuda: &Cuda,
    x: &Buffer,
    dim: usize,
    names: Option<&[u32]>,
    chosen: &mut Chosen,
    places: Range<usize>,
) {
    assert!(dim > 0 && names.is_none_or(|names| names.len() == dim));
    let [tokens, values] = chosen.at(&places);
    let mut shared = cuda.shared();
    let args = Choose {
        x: x.first(places.len() * dim),
        names: names.map_or(Address::NONE, |names| shared.kept.place(names)),
        tokens,
        values,
        dim: count(dim),
        unused: 0,
    };
    let grid = Grid::new([count(places.len()), 1, 1], 1024);
    // SAFETY: the arguments are the struct of the kernel; there are as many rows as places.
    unsafe { cuda.launch(kernel("choose", "choose"), grid, &args) };
}

/// [`Backend::download_chosen`](crate::backend::Backend::download_chosen).
pub(super) fn download(cuda: &Cuda, chosen: &Chosen, at: usize, dst: &mut [Largest]) {
    let [tokens, _] = chosen.at(&(at..at + dst.len()));
    // One transfer, including the memory between the tokens and their logits.
    let mut words = vec![0; chosen.len + dst.len()];
    // While the lock is held, no operation uses the address of a table.
    let _shared = cuda.shared();
    // SAFETY: the logits of these places are at that distance from their tokens.
    let read = unsafe {
        cuda.queue
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

/// [`Backend::embed_chosen`](crate::backend::Backend::embed_chosen).
pub(super) fn embed(
    cuda: &Cuda,
    table: &Weight,
    chosen: &Chosen,
    places: &[usize],
    out: &mut Buffer,
) {
    assert!(places.iter().all(|&place| place < chosen.len));
    let out = out.first_mut(places.len() * table.n_cols);
    let words: Vec<u32> = places.iter().map(|&place| count(place)).collect();
    let mut shared = cuda.shared();
    let which = Rows::Chosen {
        tokens: chosen.memory.address(),
        places: cuda.table(&mut shared, &words),
    };
    cuda.decode_rows(table, which, places.len(), out);
}
