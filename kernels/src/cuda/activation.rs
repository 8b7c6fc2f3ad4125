//! Activations quantized to 8 bits for products with quantized weights.
//!
//! If the kernel that computes the activations is still queued, it also quantizes them, without a separate
//! launch. Products with the same activations share the quants.

use std::sync::Arc;

use bytemuck::NoUninit;

use super::device::{Address, Grid};
use super::memory::{Buffer, Contents, Scratch};
use super::queue::{Queue, Ticket};
use super::source::{CompiledFor, Source};
use super::{Cuda, count, kernel};

/// The kernel that quantizes activations.
pub(crate) const SOURCE: Source = Source {
    name: "activation",
    text: include_str!("activation.cu"),
    compiled_for: CompiledFor::Single,
};

/// Columns of a tile, which share a scale.
const LANES: usize = 32;

/// Kinds of numbers stored per tile besides its quants. Per kind, a row has room for a multiple of `QUAD`
/// numbers.
const N_KIND: usize = 3;
const QUAD: usize = 4;

/// Addresses of the quants and their scales, to be written or read; null by default.
#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
pub(crate) struct QuantizedInput {
    pub(crate) quants: Address,
    pub(crate) scales: Address,
    n_tile: u32,
    unused: u32,
}

impl QuantizedInput {
    /// Passed to a kernel that does not quantize its output.
    pub(crate) const NONE: QuantizedInput = QuantizedInput {
        quants: Address::NONE,
        scales: Address::NONE,
        n_tile: 0,
        unused: 0,
    };
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Quantize {
    x: Address,
    input: QuantizedInput,
    len: u64,
}

/// A queued launch that can also quantize its output.
struct Producer {
    ticket: Ticket,
    /// Offset of the [`QuantizedInput`] in its struct of arguments.
    at: usize,
    contents: Contents,
    len: usize,
}

/// Existing quants.
struct Latest {
    contents: Contents,
    n: usize,
    n_cols: usize,
    input: QuantizedInput,
}

/// The latest quants, and the launch that could produce the next ones.
pub(crate) struct Quants {
    scratch: Scratch,
    latest: Option<Latest>,
    producer: Option<Producer>,
    /// The last launch that reads them.
    used: Option<Ticket>,
}

impl Quants {
    pub(crate) fn new(queue: Arc<Queue>) -> Quants {
        Quants {
            scratch: Scratch::new(queue),
            latest: None,
            producer: None,
            used: None,
        }
    }

    /// Records a launch that writes the first `n` rows of `dim` elements of a buffer, with a [`QuantizedInput`] at
    /// offset `at` of its struct. Its warps handle whole tiles, so it can quantize only rows that are a
    /// multiple of a tile.
    pub(crate) fn record_producer(
        &mut self,
        ticket: Option<Ticket>,
        at: usize,
        out: &Buffer,
        n: usize,
        dim: usize,
    ) {
        self.producer = ticket
            .filter(|_| dim.is_multiple_of(LANES))
            .map(|ticket| Producer {
                ticket,
                at,
                contents: out.contents(),
                len: n * dim,
            });
    }

    /// Records a launch that reads the latest quants.
    pub(crate) fn record_use(&mut self, ticket: Option<Ticket>) {
        self.used = ticket.or(self.used);
    }

    /// Returns the quants of the first `n` rows of a buffer, valid until the next call for other
    /// activations.
    pub(crate) fn of(
        &mut self,
        cuda: &Cuda,
        x: &Buffer,
        n: usize,
        n_cols: usize,
    ) -> QuantizedInput {
        let contents = x.contents();
        if let Some(latest) = &self.latest
            && latest.contents == contents
            && latest.n_cols == n_cols
            && latest.n >= n
        {
            return latest.input;
        }
        let n_tile = n_cols / LANES;
        let n_scale = n * N_KIND * n_tile.next_multiple_of(QUAD);
        let bytes = n * n_cols + n_scale * size_of::<f32>();
        let quants = self.scratch.place(bytes);
        let input = QuantizedInput {
            quants,
            scales: quants.offset(n * n_cols),
            n_tile: count(n_tile),
            unused: 0,
        };
        let producer = self.producer.take().filter(|producer| {
            let is_later = self.used.is_none_or(|used| producer.ticket.is_after(used));
            producer.contents == contents && producer.len == n * n_cols && is_later
        });
        let is_produced = producer.is_some_and(|Producer { ticket, at, .. }| {
            // SAFETY: there is room for the quants of all its output, and nothing that was queued after it
            // uses the old ones.
            unsafe { cuda.queue.amend(ticket, at, bytemuck::bytes_of(&input)) }
        });
        if !is_produced {
            let len = n * n_cols;
            let args = Quantize {
                x: x.first(len),
                input,
                len: len as u64,
            };
            let grid = Grid::elements(len, 256);
            // SAFETY: the arguments are the struct of the kernel; there is room for quants and scales of
            // all tiles.
            unsafe { cuda.launch(kernel("activation", "quantize"), grid, &args) };
        }
        self.latest = Some(Latest {
            contents,
            n,
            n_cols,
            input,
        });
        input
    }
}
