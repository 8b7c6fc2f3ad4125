//! Memory for activations.

use std::ops::{Deref, DerefMut};

use super::huge_pages;
use crate::simd::LINE;

/// Elements in host memory, aligned to a cache line: if rows are whole lines, no vector load crosses two of them.
#[derive(Debug)]
pub struct Buffer {
    /// Longer by one cache line, so that `start` can be aligned.
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// `len` NaNs. All bits are set, which is NaN in every element type the memory is read as.
    pub(crate) fn new(len: usize) -> Buffer {
        let mut buffer = Buffer::untouched(len);
        huge_pages::advise(buffer.as_mut_ptr(), size_of_val(&*buffer));
        buffer.fill(f32::from_bits(u32::MAX));
        buffer
    }

    /// `len` elements whose pages are untouched: the system commits memory when they are written.
    pub(crate) fn untouched(len: usize) -> Buffer {
        let memory = vec![0.0; len + LINE / size_of::<f32>()];
        let address = memory.as_ptr().addr();
        Buffer {
            start: (address.next_multiple_of(LINE) - address) / size_of::<f32>(),
            memory,
            len,
        }
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
