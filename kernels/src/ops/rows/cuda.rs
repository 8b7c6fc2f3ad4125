//! Moving rows.

use bytemuck::NoUninit;

use super::RowsOp;
use crate::backend::Columns;
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::Buffer;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count, kernel};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "rows",
    text: include_str!("rows.cu"),
    compiled_for: CompiledFor::Single,
};

impl RowsOp for Cuda {
    fn gather_rows(&self, src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer) {
        let far = rows.iter().max().map_or(0, |&row| (row + 1) * dim);
        let table: Vec<u32> = rows.iter().map(|&row| count(row)).collect();
        let len = rows.len() * dim;
        let mut shared = self.shared();
        let args = GatherRows {
            src: src.first(far),
            dst: dst.first_mut(len),
            rows: self.table(&mut shared, &table),
            dim: dim as u64,
            len: len as u64,
        };
        let grid = Grid::elements(len, THREADS);
        // SAFETY: the arguments are the struct of the kernel; `src` contains the last of these rows, and `dst`
        // has room for all.
        unsafe { self.launch(kernel("rows", "gather_rows"), grid, &args) };
    }

    fn copy_rows(
        &self,
        src: &Buffer,
        from: usize,
        dst: &mut Buffer,
        to: usize,
        dim: usize,
        n: usize,
    ) {
        let (from, to) = (src.at(from * dim, n * dim), dst.at_mut(to * dim, n * dim));
        // SAFETY: both buffers hold that many elements from there on, and they are distinct.
        unsafe { self.copy(from, to, n * dim * size_of::<f32>()) };
    }

    fn copy_within(&self, buffer: &mut Buffer, from: usize, to: usize, len: usize) {
        let (from, to) = (buffer.at(from, len), buffer.at_mut(to, len));
        // SAFETY: the buffer holds that many elements at both offsets, and the ranges do not overlap.
        unsafe { self.copy(from, to, len * size_of::<f32>()) };
    }

    fn copy_columns(
        &self,
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
        unsafe { self.launch(kernel("rows", "copy_columns"), grid, &args) };
    }
}

const THREADS: u32 = 256;

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

impl Cuda {
    /// Copies bytes.
    ///
    /// # Safety
    /// Both ranges lie within allocated memory and do not overlap.
    pub(crate) unsafe fn copy(&self, src: Address, dst: Address, bytes: usize) {
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
