//! Memory for activations.

use std::ops::{Deref, DerefMut};
use std::slice;

/// Elements in host memory, from the start of a cache line.
#[derive(Clone, Debug)]
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

/// A cache line: a vector register never straddles two of them when rows are whole lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Buffer {
    /// `len` NaNs. All their bits are set, so that they are NaN in any type that the memory is read
    /// as.
    pub(super) fn new(len: usize) -> Buffer {
        Buffer {
            lines: vec![Line([f32::from_bits(u32::MAX); 16]); len.div_ceil(16)],
            len,
        }
    }

    /// The elements' memory.
    pub(super) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the lines are that many bytes or more, and any byte is a `u8`.
        unsafe { slice::from_raw_parts(self.lines.as_ptr().cast(), 4 * self.len) }
    }

    /// The same to be written: any bytes are an `f32`.
    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the exclusive borrow passes on.
        unsafe { slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), 4 * self.len) }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the lines are that many elements or more, without anything between them.
        unsafe { slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the exclusive borrow passes on.
        unsafe { slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
