//! What is asked of a device, gathered: kernels wait until there are many of them, or until somebody
//! wants a result, and begin together.
//!
//! Decoding asks for the same kernels with the same arguments in every step: buffers stay where they
//! are, and tables of positions and rows lie where those of the step before lay. So a step is a few
//! graphs that the device has had before, one write of tables, and one read.
//!
//! A device takes its time to begin a kernel. So launches that follow one another and do not depend on one
//! another are one, and a launch can be amended or taken back as long as it waits: what makes
//! activations makes their codes, too, when somebody wants them.
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

/// Structs of arguments that a kernel can take: `MOST_BESIDE` of `common.cuh`.
pub(super) const MOST_BESIDE: usize = 3;

/// A launch that was asked for, by its number, and where in its arguments the struct of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    number: u64,
    at: usize,
}

impl Ticket {
    /// Whether this was asked for after the other.
    pub(super) fn is_after(self, other: Ticket) -> bool {
        self.number > other.number
    }
}

/// What a launch reads and writes of memory that changes, by the addresses that it was allocated at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched {
    pub(super) reads: [Address; 2],
    pub(super) writes: [Address; 2],
}

impl Touched {
    /// Whether both may run at the same time.
    fn suits(&self, other: &Touched) -> bool {
        let meet =
            |a: &[Address], b: &[Address]| a.iter().any(|a| *a != Address::NONE && b.contains(a));
        !(meet(&self.writes, &other.writes)
            || meet(&self.writes, &other.reads)
            || meet(&self.reads, &other.writes))
    }
}

/// What the launches touch that have become one.
struct Joinable(Vec<Touched>);

impl Joinable {
    /// Makes a launch one with that before, if it is of the same kernel and neither needs the other to be
    /// over; its number among them.
    fn join(&mut self, before: &mut Launch, launch: &Launch, touched: Touched) -> Option<usize> {
        let [x, y, z] = before.grid.blocks;
        let [new_x, new_y, _] = launch.grid.blocks;
        let is_alike = before.kernel == launch.kernel && before.grid.threads == launch.grid.threads;
        let n = self.0.len();
        if !is_alike || n == MOST_BESIDE || self.0.iter().any(|other| !touched.suits(other)) {
            return None;
        }
        let size = launch.args.size() / MOST_BESIDE;
        before.args.put(n * size, &launch.args.bytes()[..size]);
        before.grid.blocks = [x.max(new_x), y.max(new_y), z + 1];
        self.0.push(touched);
        Some(n)
    }
}

/// A device and what it has been asked for.
pub(super) struct Queue {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

struct State {
    waiting: Vec<Launch>,
    /// How many launches have begun.
    n_begun: u64,
    /// What the last of those that wait could be joined with.
    last: Option<Joinable>,
    tables: Tables,
    /// `None`: kernels are begun one by one.
    graphs: Option<Graphs>,
    failure: Option<DeviceError>,
}

impl Queue {
    pub(super) fn new(device: Arc<dyn Device>, launching: Launching) -> Queue {
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

    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(super) fn failure(&self) -> Option<DeviceError> {
        self.state().failure.clone()
    }

    /// Nothing more is done, since something cannot be.
    pub(super) fn refuse(&self, error: DeviceError) {
        self.state().ask(|_| Err::<(), _>(error));
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

    /// Runs a kernel, in its turn; `None` after a failure.
    ///
    /// # Safety
    /// The arguments are the struct that the kernel takes, and what its addresses point to is as
    /// long as the kernel expects, until it has run.
    pub(super) unsafe fn launch(&self, launch: Launch) -> Option<Ticket> {
        self.state().ask(|state| {
            // SAFETY: the caller's promise.
            unsafe { state.launch(launch, &*self.device) }
        })
    }

    /// Runs a kernel that takes [`MOST_BESIDE`] structs of arguments, of which the launch has the first: in
    /// its turn, or together with the launch before.
    ///
    /// # Safety
    /// That of [`Queue::launch`]; besides it the kernel touches nothing that changes but what `touched` says.
    pub(super) unsafe fn launch_beside(&self, launch: Launch, touched: Touched) -> Option<Ticket> {
        let size = launch.args.size() / MOST_BESIDE;
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

    /// Puts bytes in their place in the struct of arguments of a launch; whether it still waits.
    ///
    /// # Safety
    /// With them, and in its turn, the launch is as good as before.
    pub(super) unsafe fn amend(&self, ticket: Ticket, at: usize, bytes: &[u8]) -> bool {
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

    /// Takes a launch back; whether it still waited, and was the last.
    pub(super) fn take_back(&self, ticket: Ticket) -> bool {
        let mut state = self.state();
        let is_last = ticket.number + 1 == state.n_begun + state.waiting.len() as u64;
        let is_taken = is_last && state.waiting.pop().is_some();
        if is_taken {
            state.last = None;
        }
        is_taken
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

    /// Has a launch wait, and begins all if they are many.
    ///
    /// # Safety
    /// That of [`Queue::launch`].
    unsafe fn launch(
        &mut self,
        launch: Launch,
        device: &dyn Device,
    ) -> Result<Ticket, DeviceError> {
        let number = self.n_begun + self.waiting.len() as u64;
        self.waiting.push(launch);
        self.last = None;
        if self.waiting.len() >= TOGETHER {
            // SAFETY: what was asked for is launched as it was asked for.
            unsafe { self.begin(device)? };
        }
        Ok(Ticket { number, at: 0 })
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
