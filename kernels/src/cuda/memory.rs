//! What lies in a device's memory: buffers, weights, choices of experts, and small tables.

use std::sync::{Arc, OnceLock};

use schemas::gguf::DType;

use super::Cuda;
use super::device::{Address, Device, DeviceError, Memory};
use crate::backend::WeightData;

/// `f32` elements in a device's memory.
pub struct Buffer {
    pub(super) memory: Memory,
    pub(super) len: usize,
}

impl Buffer {
    /// The first of `len` elements that an operation uses.
    pub(super) fn first(&self, len: usize) -> Address {
        self.at(0, len)
    }

    /// The element at `at`, with at least `len` from there on.
    pub(super) fn at(&self, at: usize, len: usize) -> Address {
        assert!(
            at + len <= self.len,
            "{len} elements from {at} on, of {}",
            self.len
        );
        self.memory.address().offset(at * size_of::<f32>())
    }
}

/// A weight in a device's memory, in the bytes of its file.
pub struct Weight {
    pub(super) dtype: DType,
    /// Output features; 1 for a vector.
    pub(super) n_rows: usize,
    /// Input features.
    pub(super) n_cols: usize,
    pub(super) row_bytes: usize,
    pub(super) memory: Memory,
    /// All elements as numbers, once an operation has asked for them.
    pub(super) numbers: OnceLock<Memory>,
}

impl Weight {
    /// `None` where no kernel reads the element type.
    pub(super) fn new(cuda: &Cuda, data: &WeightData) -> Option<Weight> {
        super::source::WEIGHTS.contains(&data.dtype).then_some(())?;
        let row_bytes = data.dtype.row_bytes(data.n_cols as u64)? as usize;
        let bytes = (*data.bytes).as_ref();
        assert_eq!(bytes.len(), data.n_rows * row_bytes, "bytes of a weight");
        let memory = cuda.memory(bytes.len());
        // SAFETY: the memory is that long.
        cuda.ask(|device| unsafe { device.write(bytes, memory.address()) });
        data.bytes.let_go(0..bytes.len());
        Some(Weight {
            dtype: data.dtype,
            n_rows: data.n_rows,
            n_cols: data.n_cols,
            row_bytes,
            memory,
            numbers: OnceLock::new(),
        })
    }

    /// Whether elements are codes with scales.
    pub(super) fn is_coded(&self) -> bool {
        !matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16)
    }

    /// All elements as numbers, (n_rows, n_cols).
    pub(super) fn numbers(&self, cuda: &Cuda) -> Address {
        if self.dtype == DType::F32 {
            return self.memory.address();
        }
        let numbers = self.numbers.get_or_init(|| {
            let numbers = cuda.memory(self.n_rows * self.n_cols * size_of::<f32>());
            cuda.decode_rows(self, Address::NONE, self.n_rows, numbers.address());
            numbers
        });
        numbers.address()
    }
}

/// The experts of each row, most wanted first, and their weights: both (n, n_used).
pub struct Routes {
    pub(super) n_used: usize,
    /// Experts that rows have chosen from.
    pub(super) n_expert: usize,
    /// Slots that there is room for.
    pub(super) capacity: usize,
    pub(super) experts: Memory,
    pub(super) weights: Memory,
    /// Slots, those of an expert side by side.
    pub(super) order: Memory,
    /// Slots that are multiplied together.
    pub(super) groups: Memory,
    /// How many slots one group may have, and how many groups there may be.
    pub(super) width: usize,
    pub(super) n_groups: usize,
}

/// Small arrays from the host, kept for as long as they are asked for again: the layers of a model
/// all ask for the same positions and rows.
pub(super) struct Tables {
    device: Arc<dyn Device>,
    /// How many are kept.
    capacity: usize,
    /// The one that was asked for last comes last.
    tables: Vec<(Vec<u32>, Memory)>,
}

impl Tables {
    pub(super) fn new(device: Arc<dyn Device>, capacity: usize) -> Tables {
        Tables {
            device,
            capacity,
            tables: Vec::new(),
        }
    }

    /// Where the words are; they stay there until as many other tables have been asked for as are kept.
    pub(super) fn place(&mut self, words: &[u32]) -> Result<Address, DeviceError> {
        if let Some(i) = self.tables.iter().position(|(known, _)| known == words) {
            self.tables[i..].rotate_left(1);
        } else {
            let bytes = size_of_val(words);
            let oldest = (self.tables.len() >= self.capacity).then(|| self.tables.remove(0).1);
            let memory = match oldest.filter(|memory| memory.bytes() >= bytes) {
                Some(memory) => memory,
                None => Memory::new(&self.device, bytes.next_power_of_two().max(256))?,
            };
            let little_endian: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            // SAFETY: the memory is at least that long.
            unsafe { self.device.write(&little_endian, memory.address())? };
            self.tables.push((words.to_vec(), memory));
        }
        let (_, memory) = self.tables.last().expect("one was just put there");
        Ok(memory.address())
    }
}

/// Memory that one operation at a time uses, and that only grows.
pub(super) struct Scratch {
    device: Arc<dyn Device>,
    memory: Option<Memory>,
}

impl Scratch {
    pub(super) fn new(device: Arc<dyn Device>) -> Scratch {
        Scratch {
            device,
            memory: None,
        }
    }

    pub(super) fn place(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        match &self.memory {
            Some(memory) if memory.bytes() >= bytes => Ok(memory.address()),
            _ => {
                // What was there goes before the new: both need not fit at once.
                self.memory = None;
                let memory = Memory::new(&self.device, bytes)?;
                Ok(self.memory.insert(memory).address())
            }
        }
    }
}
