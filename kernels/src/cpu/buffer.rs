//! Memory for activations.

use std::ops::{Deref, DerefMut};
use std::slice;

/// Bytes of a cache line: a vector register never straddles two of them when rows are whole lines.
const LINE: usize = 64;

/// Elements in host memory, from the start of a cache line.
#[derive(Debug)]
pub struct Buffer {
    /// With room to begin anywhere in the first line.
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// `len` NaNs. All their bits are set, so that they are NaN in any type that the memory is read
    /// as.
    pub(super) fn new(len: usize) -> Buffer {
        let mut buffer = Buffer::untouched(len);
        buffer.fill(f32::from_bits(u32::MAX));
        buffer
    }

    /// `len` elements that nothing has touched yet: the system finds memory for what is written.
    pub(super) fn untouched(len: usize) -> Buffer {
        let memory = vec![0.0; len + LINE / size_of::<f32>()];
        let address = memory.as_ptr().addr();
        Buffer {
            start: (address.next_multiple_of(LINE) - address) / size_of::<f32>(),
            memory,
            len,
        }
    }

    /// The elements' memory.
    pub(super) fn as_bytes(&self) -> &[u8] {
        // SAFETY: any byte is a `u8`.
        unsafe { slice::from_raw_parts(self.as_ptr().cast(), size_of_val(&**self)) }
    }

    /// The same to be written: any bytes are an `f32`.
    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the exclusive borrow passes on.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr().cast(), size_of_val(&**self)) }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        let mut buffer = Buffer::untouched(self.len);
        buffer.copy_from_slice(self);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..][..self.len]
    }
}
