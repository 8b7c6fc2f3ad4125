//! Objects in device memory: buffers, weights, expert choices, and small tables.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use schemas::gguf::DType;

use super::Cuda;
use super::device::{Address, Memory};
use super::queue::Queue;
use crate::backend::WeightData;
use crate::ops::embed::cuda::RowSelection;
use crate::types::{ElementType, element_type};

/// `f32` elements in device memory.
pub struct Buffer {
    pub(crate) memory: Memory,
    pub(crate) len: usize,
    contents: Contents,
}

/// A unique id of the contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contents(u64);

impl Contents {
    fn new() -> Contents {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Contents(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Buffer {
    /// A buffer of `len` elements.
    pub(crate) fn new(memory: Memory, len: usize) -> Buffer {
        let contents = Contents::new();
        Buffer {
            memory,
            len,
            contents,
        }
    }

    /// Returns the id of the current contents.
    pub(crate) fn contents(&self) -> Contents {
        self.contents
    }

    /// Returns the address of the first of `len` elements, for reading.
    pub(crate) fn first(&self, len: usize) -> Address {
        self.at(0, len)
    }

    /// Returns the address of the first of `len` elements, for writing.
    pub(crate) fn first_mut(&mut self, len: usize) -> Address {
        self.at_mut(0, len)
    }

    /// Returns the address of element `at`, with at least `len` elements from there, for writing.
    pub(crate) fn at_mut(&mut self, at: usize, len: usize) -> Address {
        self.contents = Contents::new();
        self.at(at, len)
    }

    /// Returns the address of element `at`, with at least `len` elements from there, for reading.
    pub(crate) fn at(&self, at: usize, len: usize) -> Address {
        assert!(
            at + len <= self.len,
            "{len} elements from {at} on, of {}",
            self.len
        );
        self.memory.address().offset(at * size_of::<f32>())
    }
}

/// Bytes that kernels copy at a time. A weight is padded with zeros to a multiple of it.
const PIECE: usize = 16;

/// A weight in device memory, in file encoding.
pub struct Weight {
    pub(crate) element_type: &'static ElementType,
    /// Output features; 1 for a vector.
    pub(crate) n_rows: usize,
    /// Input features.
    pub(crate) n_cols: usize,
    pub(crate) row_bytes: usize,
    pub(crate) memory: Memory,
    /// All elements as `f32`, computed when an operation first needs them.
    pub(crate) numbers: OnceLock<Memory>,
}

impl Weight {
    /// `None` if no kernel reads the element type.
    pub(crate) fn new(cuda: &Cuda, data: &WeightData) -> Option<Weight> {
        let element_type = element_type(data.dtype)?;
        (element_type.cuda.is_some() && element_type.products.is_some()).then_some(())?;
        let row_bytes = data.dtype.row_bytes(data.n_cols as u64)? as usize;
        let bytes = (*data.bytes).as_ref();
        assert_eq!(bytes.len(), data.n_rows * row_bytes, "bytes of a weight");
        let memory = cuda.memory(bytes.len().next_multiple_of(PIECE));
        if let Some(last) = memory.bytes().checked_sub(PIECE) {
            // SAFETY: the memory is that long, in whole words.
            unsafe {
                let to = memory.address().offset(last);
                cuda.queue.fill(to, 0, PIECE / size_of::<u32>());
                cuda.queue.write(bytes, memory.address());
            }
        }
        data.bytes.release_pages(0..bytes.len());
        Some(Weight {
            element_type,
            n_rows: data.n_rows,
            n_cols: data.n_cols,
            row_bytes,
            memory,
            numbers: OnceLock::new(),
        })
    }

    /// The element type.
    pub(crate) fn dtype(&self) -> DType {
        self.element_type.dtype
    }

    /// True if the type is quantized.
    pub(crate) fn is_quantized(&self) -> bool {
        self.element_type.is_quantized()
    }

    /// Returns all elements as `f32`, `(n_rows, n_cols)`.
    pub(crate) fn numbers(&self, cuda: &Cuda) -> Address {
        if self.dtype() == DType::F32 {
            return self.memory.address();
        }
        let numbers = self.numbers.get_or_init(|| {
            let numbers = cuda.memory(self.n_rows * self.n_cols * size_of::<f32>());
            cuda.decode_rows(self, RowSelection::First, self.n_rows, numbers.address());
            numbers
        });
        numbers.address()
    }
}

/// The experts of each row, best first, and their weights: both `(n, n_used)`. A slot is one chosen expert
/// of one row.
pub struct Routes {
    pub(crate) n_used: usize,
    /// Number of experts that rows have chosen from.
    pub(crate) n_expert: usize,
    /// Maximum number of slots.
    pub(crate) capacity: usize,
    pub(crate) experts: Memory,
    pub(crate) weights: Memory,
    /// Slots, sorted by expert.
    pub(crate) order: Memory,
    /// Groups of slots with the same expert, which are multiplied together.
    pub(crate) groups: Memory,
    /// Maximum number of slots per group, and of groups.
    pub(crate) width: usize,
    pub(crate) n_groups: usize,
}

/// Cached arrays from the host: addresses of experts, and token maps.
pub(crate) struct ArrayCache {
    queue: Arc<Queue>,
    /// In order of use, the most recently used last.
    arrays: Vec<(Vec<u32>, Memory)>,
}

impl ArrayCache {
    /// Maximum number of arrays, at least as many as a model has stacks of experts.
    const CAPACITY: usize = 1024;

    pub(crate) fn new(queue: Arc<Queue>) -> ArrayCache {
        let arrays = Vec::new();
        ArrayCache { queue, arrays }
    }

    /// Returns the address of the words, valid until [`ArrayCache::CAPACITY`] other arrays have been used.
    pub(crate) fn place(&mut self, words: &[u32]) -> Address {
        if let Some(i) = self.arrays.iter().position(|(known, _)| known == words) {
            self.arrays[i..].rotate_left(1);
        } else {
            if self.arrays.len() >= ArrayCache::CAPACITY {
                self.arrays.remove(0);
            }
            let memory = Memory::new(&self.queue, size_of_val(words));
            // SAFETY: the memory is that long.
            unsafe {
                self.queue
                    .write(bytemuck::cast_slice(words), memory.address())
            };
            self.arrays.push((words.to_vec(), memory));
        }
        let (_, memory) = self.arrays.last().expect("one was just put there");
        memory.address()
    }
}

/// Scratch memory that one operation at a time uses. It only grows.
pub(crate) struct Scratch {
    queue: Arc<Queue>,
    memory: Option<Memory>,
}

impl Scratch {
    pub(crate) fn new(queue: Arc<Queue>) -> Scratch {
        let memory = None;
        Scratch { queue, memory }
    }

    pub(crate) fn place(&mut self, bytes: usize) -> Address {
        match &self.memory {
            Some(memory) if memory.bytes() >= bytes => memory.address(),
            _ => {
                // The old memory is freed first: both need not fit at once.
                self.memory = None;
                let memory = Memory::new(&self.queue, bytes);
                self.memory.insert(memory).address()
            }
        }
    }
}
