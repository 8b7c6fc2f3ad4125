//! Activations as codes, as quantized weights are multiplied with them.
//!
//! Codes are made where they are wanted, but by whom the activations are made, if that kernel still waits:
//! nothing is launched for them. Products with the same activations use the same codes.

use std::sync::Arc;

use bytemuck::NoUninit;

use super::device::{Address, Grid};
use super::memory::{Buffer, Contents, Scratch};
use super::queue::{Queue, Ticket};
use super::{Cuda, count, kernel};

/// Columns that share a scale: a tile.
const LANES: usize = 32;

/// What is kept of a tile besides its codes: so many kinds of numbers, of each kind of a row a multiple of so
/// many side by side.
const N_KIND: usize = 3;
const QUAD: usize = 4;

/// Where codes and their numbers go, or are; nowhere by default.
#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
pub(super) struct Coding {
    pub(super) codes: Address,
    pub(super) scales: Address,
    n_tile: u32,
    unused: u32,
}

impl Coding {
    /// What a kernel is told that makes no codes.
    pub(super) const NONE: Coding = Coding {
        codes: Address::NONE,
        scales: Address::NONE,
        n_tile: 0,
        unused: 0,
    };
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Quantize {
    x: Address,
    coding: Coding,
    len: u64,
}

/// A launch that can be told to make codes of what it writes.
struct Maker {
    ticket: Ticket,
    /// Where in its struct of arguments the [`Coding`] is.
    at: usize,
    contents: Contents,
    len: usize,
}

/// Codes that are there.
struct Held {
    contents: Contents,
    n: usize,
    n_cols: usize,
    coding: Coding,
}

/// The codes that were asked for last, and who could make the next ones.
pub(super) struct Codes {
    scratch: Scratch,
    held: Option<Held>,
    maker: Option<Maker>,
    /// The last launch that used them.
    used: Option<Ticket>,
}

impl Codes {
    pub(super) fn new(queue: Arc<Queue>) -> Codes {
        Codes {
            scratch: Scratch::new(queue),
            held: None,
            maker: None,
            used: None,
        }
    }

    /// A launch writes the first `n` rows of `dim` elements of a buffer and has a [`Coding`] `at` some place in
    /// its struct. Warps have whole tiles of rows, so of rows that are none it can make no codes.
    pub(super) fn made(
        &mut self,
        ticket: Option<Ticket>,
        at: usize,
        out: &Buffer,
        n: usize,
        dim: usize,
    ) {
        self.maker = ticket
            .filter(|_| dim.is_multiple_of(LANES))
            .map(|ticket| Maker {
                ticket,
                at,
                contents: out.contents(),
                len: n * dim,
            });
    }

    /// A launch uses the codes that were asked for last.
    pub(super) fn used(&mut self, ticket: Option<Ticket>) {
        self.used = ticket.or(self.used);
    }

    /// Codes of the first `n` rows of a buffer, until others are asked for.
    pub(super) fn of(&mut self, cuda: &Cuda, x: &Buffer, n: usize, n_cols: usize) -> Coding {
        let contents = x.contents();
        if let Some(held) = &self.held
            && held.contents == contents
            && held.n_cols == n_cols
            && held.n >= n
        {
            return held.coding;
        }
        let n_tile = n_cols / LANES;
        let n_scale = n * N_KIND * n_tile.next_multiple_of(QUAD);
        let bytes = n * n_cols + n_scale * size_of::<f32>();
        let codes = self.scratch.place(bytes);
        let coding = Coding {
            codes,
            scales: codes.offset(n * n_cols),
            n_tile: count(n_tile),
            unused: 0,
        };
        let maker = self.maker.take().filter(|maker| {
            let is_later = self.used.is_none_or(|used| maker.ticket.is_after(used));
            maker.contents == contents && maker.len == n * n_cols && is_later
        });
        let is_made = maker.is_some_and(|Maker { ticket, at, .. }| {
            // SAFETY: there is room for the codes of all that it writes, and nothing that was asked for after
            // it uses them.
            unsafe { cuda.queue.amend(ticket, at, bytemuck::bytes_of(&coding)) }
        });
        if !is_made {
            let len = n * n_cols;
            let args = Quantize {
                x: x.first(len),
                coding,
                len: len as u64,
            };
            let grid = Grid::elements(len, 256);
            // SAFETY: the struct of the kernel; there is room for codes and scales of all tiles.
            unsafe { cuda.launch(kernel("activation", "quantize"), grid, &args) };
        }
        self.held = Some(Held {
            contents,
            n,
            n_cols,
            coding,
        });
        coding
    }
}
