//! Embeddings on CUDA devices.

use bytemuck::NoUninit;

use super::EmbedOp;
use crate::cuda::device::{Address, Grid, Kernel, Unit};
use crate::cuda::memory::{Buffer, Weight};
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "embed",
    text: include_str!("embed.cu"),
    compiled_for: CompiledFor::Weights,
};

impl EmbedOp for Cuda {
    fn embed(&self, table: &Weight, tokens: &[u32], out: &mut Buffer) {
        assert!(
            tokens.iter().all(|&token| (token as usize) < table.n_rows),
            "tokens of the vocabulary"
        );
        let out = out.first_mut(tokens.len() * table.n_cols);
        let mut shared = self.shared();
        let named = RowSelection::Named(self.table(&mut shared, tokens));
        self.decode_rows(table, named, tokens.len(), out);
    }
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Embed {
    table: Address,
    tokens: Address,
    places: Address,
    out: Address,
    row_bytes: u32,
    n_cols: u32,
}

/// Selection of rows of a weight, by data on the device.
pub(crate) enum RowSelection {
    /// The first rows.
    First,
    /// The rows listed in a table.
    Named(Address),
    /// The rows listed in `tokens`, at the indices listed in `places`.
    Chosen { tokens: Address, places: Address },
}

impl Cuda {
    /// Decodes `n` rows of a weight to `out`.
    pub(crate) fn decode_rows(&self, w: &Weight, which: RowSelection, n: usize, out: Address) {
        let (tokens, places) = match which {
            RowSelection::First => (Address::NONE, Address::NONE),
            RowSelection::Named(tokens) => (tokens, Address::NONE),
            RowSelection::Chosen { tokens, places } => (tokens, places),
        };
        let args = Embed {
            table: w.memory.address(),
            tokens,
            places,
            out,
            row_bytes: count(w.row_bytes),
            n_cols: count(w.n_cols),
        };
        let unit = Unit::of_weight("embed", w.dtype());
        let name = "embed";
        let grid = Grid::new([count(n), 1, 1], 128);
        // SAFETY: the arguments are the struct of the kernel; the rows are those of the weight, and `out`
        // holds them.
        unsafe { self.launch(Kernel { unit, name }, grid, &args) };
    }
}
