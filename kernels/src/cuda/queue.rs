//! What is asked of a device, gathered: kernels wait until there are many of them, or until somebody
//! wants a result, and begin together.
//!
//! Decoding asks for the same kernels with the same arguments in every step: buffers stay where they
//! are, and tables of positions and rows lie where those of the step before lay. So a step is a few
//! graphs that the device has had before, one write of tables, and one read.
//!
//! The first failure is kept, and nothing is done after it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::{Address, Device, DeviceError, Launch};
use super::graphs::Graphs;

/// How kernels are begun; results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launching {
    /// Many at once, as graphs that the device keeps.
    #[default]
    Graphs,
    /// Each by itself.
    OneByOne,
}

/// Kernels that begin together: few enough that the device need not wait long for the first, enough
/// that beginning them costs next to nothing.
const TOGETHER: usize = 128;

/// A device and what it has been asked for.
pub(super) struct Queue {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

struct State {
    waiting: Vec<Launch>,
    tables: Tables,
    /// `None`: kernels are begun one by one.
    graphs: Option<Graphs>,
    failure: Option<DeviceError>,
}

impl Queue {
    pub(super) fn new(device: Arc<dyn Device>, launching: Launching) -> Queue {
        let state = State {
            waiting: Vec::new(),
            tables: Tables::default(),
            graphs: match launching {
                Launching::Graphs => Some(Graphs::default()),
                Launching::OneByOne => None,
            },
            failure: None,
        };
        Queue {
            device,
            state: Mutex::new(state),
        }
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(super) fn failure(&self) -> Option<DeviceError> {
        self.state().failure.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory, which may hold anything; `None` after a failure.
    pub(super) fn allocate(&self, bytes: usize) -> Option<Address> {
        self.state().ask(|_| self.device.allocate(bytes))
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// It was allocated here, and nothing that is asked for later uses it.
    pub(super) unsafe fn free(&self, address: Address) {
        let mut state = self.state();
        // SAFETY: what was asked for is launched as it was asked for.
        state.ask(|state| unsafe { state.begin(&*self.device) });
        // SAFETY: the caller's promise, and what was asked for before has begun.
        unsafe { self.device.free(address) };
    }

    /// Copies from the host, when everything asked for before has begun.
    ///
    /// # Safety
    /// The bytes lie within allocated memory.
    pub(super) unsafe fn write(&self, src: &[u8], to: Address) {
        self.state().ask(|state| {
            // SAFETY: what was asked for is launched as it was asked for; the rest is the caller's
            // promise.
            unsafe {
                state.begin(&*self.device)?;
                self.device.write(src, to)
            }
        });
    }

    /// Writes a word again and again.
    ///
    /// # Safety
    /// The words lie within allocated memory.
    pub(super) unsafe fn fill(&self, to: Address, word: u32, n_words: usize) {
        self.state().ask(|state| {
            // SAFETY: as in `write`.
            unsafe {
                state.begin(&*self.device)?;
                self.device.fill(to, word, n_words)
            }
        });
    }

    /// Copies to the host, when everything asked for before is done, and forgets all tables; `None`
    /// after a failure.
    ///
    /// # Safety
    /// The bytes lie within allocated memory.
    pub(super) unsafe fn read(&self, from: Address, dst: &mut [u8]) -> Option<()> {
        self.state().ask(|state| {
            // SAFETY: as in `write`.
            unsafe {
                state.begin(&*self.device)?;
                self.device.read(from, dst)?;
            }
            state.tables.clear(&*self.device);
            Ok(())
        })
    }

    /// Runs a kernel, in its turn.
    ///
    /// # Safety
    /// The arguments are the struct that the kernel takes, and what its addresses point to is as
    /// long as the kernel expects, until it has run.
    pub(super) unsafe fn launch(&self, launch: Launch) {
        self.state().ask(|state| {
            state.waiting.push(launch);
            match state.waiting.len() < TOGETHER {
                true => Ok(()),
                // SAFETY: what was asked for is launched as it was asked for.
                false => unsafe { state.begin(&*self.device) },
            }
        });
    }

    /// Where words are for the kernels to come, until the next read or [`Queue::clear_tables`].
    pub(super) fn table(&self, words: &[u32]) -> Address {
        let place = |state: &mut State| state.tables.place(&*self.device, words);
        self.state().ask(place).unwrap_or(Address::NONE)
    }

    /// Forgets tables if there are many: whoever holds an address of one must not use it any more.
    pub(super) fn clear_tables(&self) {
        self.state().ask(|state| {
            if state.tables.are_many() {
                // SAFETY: what was asked for is launched as it was asked for.
                unsafe { state.begin(&*self.device)? };
                state.tables.clear(&*self.device);
            }
            Ok(())
        });
    }
}

impl State {
    /// Does something, unless something has failed before.
    fn ask<T>(&mut self, what: impl FnOnce(&mut State) -> Result<T, DeviceError>) -> Option<T> {
        if self.failure.is_some() {
            return None;
        }
        what(self).map_err(|error| self.failure = Some(error)).ok()
    }

    /// Begins what waits.
    ///
    /// # Safety
    /// It was asked for with what [`Queue::launch`] demands.
    unsafe fn begin(&mut self, device: &dyn Device) -> Result<(), DeviceError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.tables.write(device)?;
        let waiting = std::mem::take(&mut self.waiting);
        // SAFETY: the caller's promise.
        let begun = unsafe {
            match &mut self.graphs {
                Some(graphs) => graphs.run(device, &waiting),
                None => waiting.iter().try_for_each(|launch| device.launch(launch)),
            }
        };
        // The room is used again.
        self.waiting = waiting;
        self.waiting.clear();
        begun
    }
}

/// Small arrays from the host, which kernels look things up in: positions, rows, steps. What is asked
/// for in the same order lies in the same places.
#[derive(Default)]
struct Tables {
    /// Where they are, once there are any.
    memory: Option<Address>,
    /// All words, some of them not written yet.
    words: Vec<u32>,
    n_written: usize,
    /// Each table's place among the words: layers ask for the same ones.
    known: Vec<std::ops::Range<usize>>,
    /// Those that there was no room for, each with memory of its own.
    apart: Vec<(Vec<u32>, Address)>,
}

impl Tables {
    /// Words that there is room for.
    const CAPACITY: usize = 1 << 18;
    /// Tables begin at multiples of this.
    const ALIGNMENT: usize = 4;

    fn place(&mut self, device: &dyn Device, words: &[u32]) -> Result<Address, DeviceError> {
        let memory = match self.memory {
            Some(memory) => memory,
            None => {
                let memory = device.allocate(Tables::CAPACITY * size_of::<u32>())?;
                *self.memory.insert(memory)
            }
        };
        let known = self
            .known
            .iter()
            .find(|at| self.words[(*at).clone()] == *words);
        if let Some(at) = known {
            return Ok(memory.offset(at.start * size_of::<u32>()));
        }
        if let Some((_, address)) = self.apart.iter().find(|(known, _)| known == words) {
            return Ok(*address);
        }
        let start = self.words.len().next_multiple_of(Tables::ALIGNMENT);
        if start + words.len() > Tables::CAPACITY {
            let address = device.allocate(size_of_val(words))?;
            self.apart.push((words.to_vec(), address));
            // SAFETY: the memory is that long, and nothing uses it yet.
            unsafe { device.write(bytemuck::cast_slice(words), address)? };
            return Ok(address);
        }
        self.words.resize(start, 0);
        self.words.extend_from_slice(words);
        self.known.push(start..self.words.len());
        Ok(memory.offset(start * size_of::<u32>()))
    }

    /// Writes the words that the device does not have yet. What is under way reads others.
    fn write(&mut self, device: &dyn Device) -> Result<(), DeviceError> {
        let new = &self.words[self.n_written..];
        if let (Some(memory), false) = (self.memory, new.is_empty()) {
            let to = memory.offset(self.n_written * size_of::<u32>());
            // SAFETY: there are no more words than there is room for.
            unsafe { device.write(bytemuck::cast_slice(new), to)? };
            self.n_written = self.words.len();
        }
        Ok(())
    }

    fn are_many(&self) -> bool {
        2 * self.words.len() > Tables::CAPACITY || !self.apart.is_empty()
    }

    /// Forgets all; nothing that waits may use one.
    fn clear(&mut self, device: &dyn Device) {
        self.words.clear();
        self.known.clear();
        self.n_written = 0;
        for (_, address) in self.apart.drain(..) {
            // SAFETY: allocated by `place`; what uses it has begun.
            unsafe { device.free(address) };
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if let Some(graphs) = &mut state.graphs {
            graphs.forget(&*self.device);
        }
        state.tables.clear(&*self.device);
        if let Some(memory) = state.tables.memory.take() {
            // SAFETY: allocated by `place`; whoever held memory of this device is gone, and with it
            // all that was asked for.
            unsafe { self.device.free(memory) };
        }
    }
}
