//! Moving and partitioning matrix rows. There is no arithmetic, so these are not kernels.

use super::Columns;
use super::RowsOp;
use crate::cpu::{Buffer, Cpu};

impl RowsOp for Cpu {
    fn gather_rows(&self, src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer) {
        for (i, &row) in rows.iter().enumerate() {
            dst[i * dim..][..dim].copy_from_slice(&src[row * dim..][..dim]);
        }
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
        dst[to * dim..][..n * dim].copy_from_slice(&src[from * dim..][..n * dim]);
    }

    fn copy_within(&self, buffer: &mut Buffer, from: usize, to: usize, len: usize) {
        buffer.copy_within(from..from + len, to);
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
        for i in 0..n {
            let src = &src[i * from.stride + from.offset..][..width];
            dst[i * to.stride + to.offset..][..width].copy_from_slice(src);
        }
    }
}
