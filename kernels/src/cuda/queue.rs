//! Queues launches for a device until there are many of them, or a result is needed, and submits them
//! together.
//!
//! Decoding launches the same kernels with the same arguments in every step: buffers stay in place, and
//! tables of positions and rows get the same addresses as in the step before. So a step is a few graphs
//! that the device already has, one write of tables, and one read.
//!
//! Launches take time on a device. So consecutive launches that do not depend on one another are joined
//! into one, and a queued launch can still be amended or cancelled: the kernel that computes activations
//! also quantizes them if a later operation needs that.
//!
//! The first failure is recorded, and nothing is executed after it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::{Address, Device, DeviceError, Launch};
use super::graphs::Graphs;

/// Launch mode of kernels. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launching {
    /// Many at once, as graphs that the device keeps.
    #[default]
    Graphs,
    /// One by one.
    OneByOne,
}

/// Launches per submission: few enough that the device does not wait long for the first, enough to make the
/// overhead negligible.
const TOGETHER: usize = 128;

/// Maximum number of argument structs per kernel: `MAX_JOINED` of `common.cuh`.
pub(crate) const MAX_JOINED: usize = 3;

/// A queued launch: its number, and the byte offset of its struct in the arguments of the joined launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    number: u64,
    at: usize,
}

impl Ticket {
    /// Returns true if this was queued after the other.
    pub(crate) fn is_after(self, other: Ticket) -> bool {
        self.number > other.number
    }
}

/// Buffers that a launch reads and writes, by allocation address. Constant memory is left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    pub(crate) reads: [Address; 2],
    pub(crate) writes: [Address; 2],
}

impl Touched {
    /// Returns true if the two launches may run at the same time.
    fn suits(&self, other: &Touched) -> bool {
        let meet =
            |a: &[Address], b: &[Address]| a.iter().any(|a| *a != Address::NONE && b.contains(a));
        !(meet(&self.writes, &other.writes)
            || meet(&self.writes, &other.reads)
            || meet(&self.reads, &other.writes))
    }
}

/// The buffers that a joined launch accesses, one entry per original launch.
struct Joinable(Vec<Touched>);

impl Joinable {
    /// Joins a launch with the queued one before, if the kernel is the same and neither depends on the
    /// other. Returns its index in the joined launch.
    fn join(&mut self, before: &mut Launch, launch: &Launch, touched: Touched) -> Option<usize> {
        let [x, y, z] = before.grid.blocks;
        let [new_x, new_y, _] = launch.grid.blocks;
        let is_alike = before.kernel == launch.kernel && before.grid.threads == launch.grid.threads;
        let n = self.0.len();
        if !is_alike || n == MAX_JOINED || self.0.iter().any(|other| !touched.suits(other)) {
            return None;
        }
        let size = launch.args.size() / MAX_JOINED;
        before.args.put(n * size, &launch.args.bytes()[..size]);
        before.grid.blocks = [x.max(new_x), y.max(new_y), z + 1];
        self.0.push(touched);
        Some(n)
    }
}

/// A device and the queue of its launches.
pub(crate) struct Queue {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

struct State {
    waiting: Vec<Launch>,
    /// Number of launches submitted.
    n_begun: u64,
    /// State for joining with the last queued launch; `None` if it cannot be joined with.
    last: Option<Joinable>,
    tables: Tables,
    /// `None` if kernels are launched one by one.
    graphs: Option<Graphs>,
    failure: Option<DeviceError>,
}

impl Queue {
    pub(crate) fn new(device: Arc<dyn Device>, launching: Launching) -> Queue {
        let state = State {
            waiting: Vec::new(),
            n_begun: 0,
            last: None,
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

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn failure(&self) -> Option<DeviceError> {
        self.state().failure.clone()
    }

    /// Records a failure for a request that cannot be executed.
    pub(crate) fn refuse(&self, error: DeviceError) {
        self.state().ask(|_| Err::<(), _>(error));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates uninitialised memory; `None` after a failure.
    pub(crate) fn allocate(&self, bytes: usize) -> Option<Address> {
        self.state().ask(|_| self.device.allocate(bytes))
    }

    /// Frees memory.
    ///
    /// # Safety
    /// It was allocated here, and no later request uses it.
    pub(crate) unsafe fn free(&self, address: Address) {
        let mut state = self.state();
        // SAFETY: every launch was queued with the requirements of `launch`.
        state.ask(|state| unsafe { state.begin(&*self.device) });
        // SAFETY: the caller's promise; all queued launches have been submitted.
        unsafe { self.device.free(address) };
    }

    /// Copies from the host, after all queued launches have been submitted.
    ///
    /// # Safety
    /// The bytes lie within allocated memory.
    pub(crate) unsafe fn write(&self, src: &[u8], to: Address) {
        self.state().ask(|state| {
            // SAFETY: every launch was queued with the requirements of `launch`; the rest is the caller's
            // promise.
            unsafe {
                state.begin(&*self.device)?;
                self.device.write(src, to)
            }
        });
    }

    /// Fills memory with a word.
    ///
    /// # Safety
    /// The words lie within allocated memory.
    pub(crate) unsafe fn fill(&self, to: Address, word: u32, n_words: usize) {
        self.state().ask(|state| {
            // SAFETY: as in `write`.
            unsafe {
                state.begin(&*self.device)?;
                self.device.fill(to, word, n_words)
            }
        });
    }

    /// Copies to the host after all earlier work is complete, and drops all tables; `None` after a failure.
    ///
    /// # Safety
    /// The bytes lie within allocated memory.
    pub(crate) unsafe fn read(&self, from: Address, dst: &mut [u8]) -> Option<()> {
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

    /// Queues a kernel; `None` after a failure.
    ///
    /// # Safety
    /// The arguments are the struct that the kernel takes, and its addresses point to as much memory as the
    /// kernel accesses, until it has run.
    pub(crate) unsafe fn launch(&self, launch: Launch) -> Option<Ticket> {
        self.state().ask(|state| {
            // SAFETY: the caller's promise.
            unsafe { state.launch(launch, &*self.device) }
        })
    }

    /// Queues a kernel that takes [`MAX_JOINED`] structs of arguments, of which the launch has the first;
    /// joins it with the launch before if possible.
    ///
    /// # Safety
    /// As for [`Queue::launch`]. Also, of memory that changes, the kernel accesses only `touched`.
    pub(crate) unsafe fn launch_joined(&self, launch: Launch, touched: Touched) -> Option<Ticket> {
        let size = launch.args.size() / MAX_JOINED;
        self.state().ask(|state| {
            let before = state.waiting.last_mut().zip(state.last.as_mut());
            if let Some((before, joinable)) = before
                && let Some(at) = joinable.join(before, &launch, touched)
            {
                let number = state.n_begun + state.waiting.len() as u64 - 1;
                return Ok(Ticket {
                    number,
                    at: at * size,
                });
            }
            // SAFETY: the caller's promise.
            let ticket = unsafe { state.launch(launch, &*self.device)? };
            let is_waiting = !state.waiting.is_empty();
            state.last = is_waiting.then(|| Joinable(vec![touched]));
            Ok(ticket)
        })
    }

    /// Overwrites bytes in the arguments of a launch; returns false if it is no longer queued.
    ///
    /// # Safety
    /// The launch meets the requirements of [`Queue::launch`] with these bytes, at its place in the queue.
    pub(crate) unsafe fn amend(&self, ticket: Ticket, at: usize, bytes: &[u8]) -> bool {
        let mut state = self.state();
        let index = ticket.number.checked_sub(state.n_begun);
        match index.and_then(|index| state.waiting.get_mut(index as usize)) {
            Some(launch) => {
                launch.args.put(ticket.at + at, bytes);
                true
            }
            None => false,
        }
    }

    /// Cancels a launch; returns false if it is no longer queued, or not the last.
    pub(crate) fn take_back(&self, ticket: Ticket) -> bool {
        let mut state = self.state();
        let is_last = ticket.number + 1 == state.n_begun + state.waiting.len() as u64;
        let is_taken = is_last && state.waiting.pop().is_some();
        if is_taken {
            state.last = None;
        }
        is_taken
    }

    /// Returns the address of a table with these words, valid until the next read or
    /// [`Queue::clear_tables`].
    pub(crate) fn table(&self, words: &[u32]) -> Address {
        let place = |state: &mut State| state.tables.place(&*self.device, words);
        self.state().ask(place).unwrap_or(Address::NONE)
    }

    /// Drops all tables if there are many. Addresses of tables must not be used afterwards.
    pub(crate) fn clear_tables(&self) {
        self.state().ask(|state| {
            if state.tables.are_many() {
                // SAFETY: every launch was queued with the requirements of `launch`.
                unsafe { state.begin(&*self.device)? };
                state.tables.clear(&*self.device);
            }
            Ok(())
        });
    }
}

impl State {
    /// Executes a request, unless an earlier one has failed.
    fn ask<T>(&mut self, what: impl FnOnce(&mut State) -> Result<T, DeviceError>) -> Option<T> {
        if self.failure.is_some() {
            return None;
        }
        what(self).map_err(|error| self.failure = Some(error)).ok()
    }

    /// Queues a launch, and submits the queue if it is long.
    ///
    /// # Safety
    /// As for [`Queue::launch`].
    unsafe fn launch(
        &mut self,
        launch: Launch,
        device: &dyn Device,
    ) -> Result<Ticket, DeviceError> {
        let number = self.n_begun + self.waiting.len() as u64;
        self.waiting.push(launch);
        self.last = None;
        if self.waiting.len() >= TOGETHER {
            // SAFETY: every launch was queued with the requirements of `launch`.
            unsafe { self.begin(device)? };
        }
        Ok(Ticket { number, at: 0 })
    }

    /// Submits the queue.
    ///
    /// # Safety
    /// Every launch was queued with the requirements of [`Queue::launch`].
    unsafe fn begin(&mut self, device: &dyn Device) -> Result<(), DeviceError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.tables.write(device)?;
        self.n_begun += self.waiting.len() as u64;
        self.last = None;
        let waiting = std::mem::take(&mut self.waiting);
        // SAFETY: the caller's promise.
        let begun = unsafe {
            match &mut self.graphs {
                Some(graphs) => graphs.run(device, &waiting),
                None => waiting.iter().try_for_each(|launch| device.launch(launch)),
            }
        };
        // Keeps the allocation.
        self.waiting = waiting;
        self.waiting.clear();
        begun
    }
}

/// Lookup tables from the host: positions, rows, steps. Tables that are requested in the same order get the
/// same addresses.
#[derive(Default)]
struct Tables {
    /// Device memory, allocated on first use.
    memory: Option<Address>,
    /// All words, some of them not yet written to the device.
    words: Vec<u32>,
    n_written: usize,
    /// The range of each table. Layers request the same tables.
    known: Vec<std::ops::Range<usize>>,
    /// Tables that did not fit, each with its own allocation.
    apart: Vec<(Vec<u32>, Address)>,
}

impl Tables {
    /// Capacity in words.
    const CAPACITY: usize = 1 << 18;
    /// Alignment of tables, in words.
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
            // SAFETY: the memory is that long, and not in use yet.
            unsafe { device.write(bytemuck::cast_slice(words), address)? };
            return Ok(address);
        }
        self.words.resize(start, 0);
        self.words.extend_from_slice(words);
        self.known.push(start..self.words.len());
        Ok(memory.offset(start * size_of::<u32>()))
    }

    /// Writes new words to the device. Running kernels read only older ones.
    fn write(&mut self, device: &dyn Device) -> Result<(), DeviceError> {
        let new = &self.words[self.n_written..];
        if let (Some(memory), false) = (self.memory, new.is_empty()) {
            let to = memory.offset(self.n_written * size_of::<u32>());
            // SAFETY: the number of words is at most the capacity.
            unsafe { device.write(bytemuck::cast_slice(new), to)? };
            self.n_written = self.words.len();
        }
        Ok(())
    }

    fn are_many(&self) -> bool {
        2 * self.words.len() > Tables::CAPACITY || !self.apart.is_empty()
    }

    /// Drops all tables; no queued launch may use one.
    fn clear(&mut self, device: &dyn Device) {
        self.words.clear();
        self.known.clear();
        self.n_written = 0;
        for (_, address) in self.apart.drain(..) {
            // SAFETY: allocated by `place`; launches that use it have been submitted.
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
            // SAFETY: allocated by `place`. All owners of memory on this device are gone, and with them
            // all queued work.
            unsafe { self.device.free(memory) };
        }
    }
}
