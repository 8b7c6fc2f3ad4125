//! Moving rows.

use bytemuck::NoUninit;

use super::device::{Address, Grid, Kernel, Unit};
use super::memory::{Buffer, Weight};
use super::{Cuda, count, kernel};
use crate::backend::Columns;

const THREADS: u32 = 256;

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

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct GatherRows {
    src: Address,
    dst: Address,
    rows: Address,
    dim: u64,
    len: u64,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct CopyBytes {
    src: Address,
    dst: Address,
    len: u64,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct CopyColumns {
    src: Address,
    dst: Address,
    from_stride: u64,
    from_offset: u64,
    to_stride: u64,
    to_offset: u64,
    width: u64,
    len: u64,
}

/// Selection of rows of a weight, by data on the device.
pub(super) enum Rows {
    /// The first rows.
    First,
    /// The rows listed in a table.
    Named(Address),
    /// The rows listed in `tokens`, at the indices listed in `places`.
    Chosen { tokens: Address, places: Address },
}

impl Cuda {
    /// Decodes `n` rows of a weight to `out`.
    pub(super) fn decode_rows(&self, w: &Weight, which: Rows, n: usize, out: Address) {
        let (tokens, places) = match which {
            Rows::First => (Address::NONE, Address::NONE),
            Rows::Named(tokens) => (tokens, Address::NONE),
            Rows::Chosen { tokens, places } => (tokens, places),
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

/// [`Backend::embed`](crate::backend::Backend::embed).
pub(super) fn embed(cuda: &Cuda, table: &Weight, tokens: &[u32], out: &mut Buffer) {
    assert!(
        tokens.iter().all(|&token| (token as usize) < table.n_rows),
        "tokens of the vocabulary"
    );
    let out = out.first_mut(tokens.len() * table.n_cols);
    let mut shared = cuda.shared();
    let named = Rows::Named(cuda.table(&mut shared, tokens));
    cuda.decode_rows(table, named, tokens.len(), out);
}

/// [`Backend::gather_rows`](crate::backend::Backend::gather_rows).
pub(super) fn gather_rows(cuda: &Cuda, src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer) {
    let far = rows.iter().max().map_or(0, |&row| (row + 1) * dim);
    let table: Vec<u32> = rows.iter().map(|&row| count(row)).collect();
    let len = rows.len() * dim;
    let mut shared = cuda.shared();
    let args = GatherRows {
        src: src.first(far),
        dst: dst.first_mut(len),
        rows: cuda.table(&mut shared, &table),
        dim: dim as u64,
        len: len as u64,
    };
    let grid = Grid::elements(len, THREADS);
    // SAFETY: the arguments are the struct of the kernel; `src` contains the last of these rows, and `dst`
    // has room for all.
    unsafe { cuda.launch(kernel("rows", "gather_rows"), grid, &args) };
}

impl Cuda {
    /// Copies bytes.
    ///
    /// # Safety
    /// Both ranges lie within allocated memory and do not overlap.
    pub(super) unsafe fn copy(&self, src: Address, dst: Address, bytes: usize) {
        let args = CopyBytes {
            src,
            dst,
            len: bytes as u64,
        };
        let grid = Grid::elements(bytes.div_ceil(16), THREADS);
        // SAFETY: the arguments are the struct of the kernel, and the caller's promise.
        unsafe { self.launch(kernel("rows", "copy"), grid, &args) };
    }
}

/// [`Backend::copy_columns`](crate::backend::Backend::copy_columns).
pub(super) fn copy_columns(
    cuda: &Cuda,
    src: &Buffer,
    from: Columns,
    dst: &mut Buffer,
    to: Columns,
    width: usize,
    n: usize,
) {
    assert!(from.offset + width <= from.stride && to.offset + width <= to.stride);
    if n * width == 0 {
        return;
    }
    let args = CopyColumns {
        src: src.first((n - 1) * from.stride + from.offset + width),
        dst: dst.first_mut((n - 1) * to.stride + to.offset + width),
        from_stride: from.stride as u64,
        from_offset: from.offset as u64,
        to_stride: to.stride as u64,
        to_offset: to.offset as u64,
        width: width as u64,
        len: (n * width) as u64,
    };
    let grid = Grid::elements(n * width, THREADS);
    // SAFETY: the arguments are the struct of the kernel; both buffers reach to the end of the last row's
    // columns.
    unsafe { cuda.launch(kernel("rows", "copy_columns"), grid, &args) };
}
