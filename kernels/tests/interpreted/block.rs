//! Executes a block of threads: warps alternately, each until a barrier.
//!
//! Lanes of a warp that are at the same instruction execute it together. If lanes have diverged, those that
//! are first in the text continue, so that all reconverge.

use std::collections::VecDeque;

use super::Order;
use super::arithmetic::{Lanes, products, products_unmeant};
use super::memory::{Clock, Fault, Global, Piece, Tracked, WARP};
use super::program::{Element, Instruction, Operation, Place, Program, Shuffle, Space, TABLES};

/// Start of shared memory in the generic address space.
const SHARED: u64 = 1 << 32;

/// Returns the numbers below `n` in that order.
pub(super) fn ordered(order: Order, n: usize) -> impl Iterator<Item = usize> {
    (0..n).map(move |i| match order {
        Order::Rising => i,
        Order::Falling => n - 1 - i,
    })
}

/// State shared by the blocks of a launch.
pub(super) struct Given<'g> {
    pub(super) program: &'g Program,
    pub(super) params: &'g [u8],
    pub(super) n_thread: usize,
    pub(super) shared_bytes: usize,
    pub(super) order: Order,
    /// Number of the launch's first block, counting all blocks that ever ran.
    pub(super) launch: u64,
}

/// A running block.
pub(super) struct Block<'b> {
    given: &'b Given<'b>,
    global: &'b mut Global,
    shared: Tracked,
    warps: Vec<Warp>,
    run: u64,
    barrier: u64,
}

/// Execution state of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Waiting at an instruction that lanes of the warp execute together.
    AtWarp,
    AtBarrier,
    Ended,
}

struct Warp {
    number: usize,
    n_lane: usize,
    registers: Vec<Lanes>,
    /// Masks of undefined bits of registers.
    unmeant: Vec<Lanes>,
    at: [usize; WARP],
    states: [State; WARP],
    sync: u64,
    /// Started copies of each lane, by groups; the last group is still open.
    copies: Vec<VecDeque<Vec<Copying>>>,
    local: Vec<Tracked>,
}

/// An asynchronous copy that has started.
#[derive(Clone, Copy)]
struct Copying {
    to: usize,
    from: u64,
    bytes: usize,
}

/// An error, and the lane it occurred in.
struct Wrong {
    lane: usize,
    text: String,
}

impl Wrong {
    fn new(lane: usize, text: impl Into<String>) -> Wrong {
        let text = text.into();
        Wrong { lane, text }
    }
}

/// State of the lanes after an instruction.
enum Next {
    Following,
    At(usize),
    End,
    Barrier,
}

impl<'b> Block<'b> {
    pub(super) fn new(
        given: &'b Given<'b>,
        global: &'b mut Global,
        place: [u32; 3],
        run: u64,
    ) -> Block<'b> {
        let program = given.program;
        let warp = |number| {
            let n_lane = WARP.min(given.n_thread - number * WARP);
            let mut registers = program.registers();
            for (name, register) in &program.specials {
                registers[*register] = special(name, number, place, given.n_thread);
            }
            let states = std::array::from_fn(|lane| match lane < n_lane {
                true => State::Running,
                false => State::Ended,
            });
            Warp {
                number,
                n_lane,
                unmeant: program.unmeant(),
                registers,
                at: [0; WARP],
                states,
                sync: 0,
                copies: vec![VecDeque::from([Vec::new()]); WARP],
                local: (0..WARP)
                    .map(|_| Tracked::new(program.local_bytes))
                    .collect(),
            }
        };
        Block {
            given,
            global,
            shared: Tracked::new(given.shared_bytes),
            warps: (0..given.n_thread.div_ceil(WARP)).map(warp).collect(),
            run,
            barrier: 0,
        }
    }

    /// Runs until all threads have ended.
    pub(super) fn run(mut self) -> Result<(), String> {
        let mut warps = std::mem::take(&mut self.warps);
        loop {
            for number in ordered(self.given.order, warps.len()) {
                let warp = &mut warps[number];
                self.run_warp(warp).map_err(|Wrong { lane, text }| {
                    let Instruction {
                        text: instruction, ..
                    } = &self.given.program.instructions[warp.at[lane]];
                    format!("thread {}: {instruction}: {text}", number * WARP + lane)
                })?;
            }
            let states = || warps.iter().flat_map(|warp| &warp.states[..warp.n_lane]);
            if states().all(|state| *state == State::Ended) {
                return Ok(());
            }
            if !states().all(|state| *state == State::AtBarrier) {
                return Err("some threads of a block wait for others that do not come".to_owned());
            }
            self.barrier += 1;
            for warp in &mut warps {
                warp.sync = 0;
                for state in &mut warp.states[..warp.n_lane] {
                    *state = State::Running;
                }
            }
        }
    }

    /// Runs a warp until none of its lanes can continue by itself.
    fn run_warp(&mut self, warp: &mut Warp) -> Result<(), Wrong> {
        loop {
            let running = |lane: &usize| warp.states[*lane] == State::Running;
            let Some(at) = (0..WARP).filter(running).map(|lane| warp.at[lane]).min() else {
                let waiting = warp.states.iter().position(|state| *state == State::AtWarp);
                return match waiting {
                    None => Ok(()),
                    Some(lane) => Err(Wrong::new(
                        lane,
                        "some lanes of a warp wait for others that do not come",
                    )),
                };
            };
            let here = (0..WARP).filter(|lane| running(lane) && warp.at[*lane] == at);
            let here = here.fold(0u32, |mask, lane| mask | 1 << lane);
            let others = (0..WARP).filter(|lane| running(lane) && warp.at[*lane] != at);
            let meeting = others.map(|lane| warp.at[lane]).min().unwrap_or(usize::MAX);
            self.run_lanes(warp, at, here, meeting)?;
        }
    }

    /// Runs lanes of a warp at one place, until they diverge, wait, end, or meet other lanes.
    fn run_lanes(
        &mut self,
        warp: &mut Warp,
        mut at: usize,
        here: u32,
        meeting: usize,
    ) -> Result<(), Wrong> {
        let program = self.given.program;
        loop {
            let instruction = &program.instructions[at];
            // Location for error messages.
            lanes(here).for_each(|lane| warp.at[lane] = at);
            let chosen = here & warp.guarded(instruction, here)?;
            if let Some(members) = warp.members(&instruction.operation, chosen)? {
                // All participating lanes must arrive before any continues.
                warp.stop(here & !chosen, at + 1, State::Running);
                warp.stop(chosen, at, State::AtWarp);
                let arrived =
                    |lane: usize| warp.states[lane] == State::AtWarp && warp.at[lane] == at;
                if !lanes(members).all(arrived) {
                    return Ok(());
                }
                warp.together(&instruction.operation, members);
                warp.stop(members, at + 1, State::Running);
                return Ok(());
            }
            let next = match chosen {
                0 => Next::Following,
                _ => self.step(warp, &instruction.operation, chosen)?,
            };
            match next {
                Next::Following => at += 1,
                Next::At(target) if chosen == here && meeting == usize::MAX => at = target,
                Next::At(target) => {
                    warp.stop(here & !chosen, at + 1, State::Running);
                    warp.stop(chosen, target, State::Running);
                    return Ok(());
                }
                Next::End => {
                    warp.stop(here & !chosen, at + 1, State::Running);
                    warp.stop(chosen, at, State::Ended);
                    return Ok(());
                }
                Next::Barrier if chosen == u32::MAX >> (WARP - warp.n_lane) => {
                    warp.stop(chosen, at + 1, State::AtBarrier);
                    return Ok(());
                }
                Next::Barrier => {
                    let lane = chosen.trailing_zeros() as usize;
                    return Err(Wrong::new(lane, "not all lanes of the warp are there"));
                }
            }
            if at >= meeting {
                warp.stop(here, at, State::Running);
                return Ok(());
            }
        }
    }

    /// Executes one instruction in some lanes.
    fn step(&mut self, warp: &mut Warp, operation: &Operation, chosen: u32) -> Result<Next, Wrong> {
        match operation {
            Operation::Map {
                map,
                rule,
                to,
                from,
            } => {
                let values = from.map(|register| &warp.registers[register]);
                let masks = from.map(|register| &warp.unmeant[register]);
                let (made, masks) = (map(values), rule.unmeant(map, values, masks));
                warp.set(*to, chosen, &made, &masks);
            }
            Operation::Pack { to, from } => {
                let bits = 64 / 2 / from.len() as u32;
                let packed = |lanes: &[Lanes]| -> Lanes {
                    std::array::from_fn(|lane| {
                        let part = |i: usize| lanes[from[i]][lane] & ((1 << bits) - 1);
                        (0..from.len()).fold(0, |whole, i| whole | part(i) << (bits * i as u32))
                    })
                };
                let (made, masks) = (packed(&warp.registers), packed(&warp.unmeant));
                warp.set(*to, chosen, &made, &masks);
            }
            Operation::Generic { to, from } => {
                let made = warp.registers[*from].map(|offset| offset + SHARED);
                let masks = warp.unmeant[*from];
                warp.set(*to, chosen, &made, &masks);
            }
            Operation::Load {
                space,
                element,
                to,
                from,
            } => {
                for lane in lanes(chosen) {
                    self.load(warp, lane, *space, *element, to, *from)?;
                }
            }
            Operation::Store {
                space,
                element,
                to,
                from,
            } => {
                for lane in lanes(chosen) {
                    self.store(warp, lane, *space, *element, *to, from)?;
                }
            }
            Operation::BeginCopy { to, from, bytes } => {
                for lane in lanes(chosen) {
                    let copying = Copying {
                        to: warp.address(*to, lane)? as u32 as usize,
                        from: warp.address(*from, lane)?,
                        bytes: *bytes,
                    };
                    let clock = self.clock(warp, lane);
                    let wrong = |place| move |fault| wrong(lane, fault, place);
                    self.take(&copying, &clock)
                        .map_err(wrong("global memory"))?;
                    let begun = self.shared.begin_copy(copying.to, copying.bytes, &clock);
                    begun.map_err(wrong("shared memory"))?;
                    let groups = &mut warp.copies[lane];
                    groups
                        .back_mut()
                        .expect("one that has not ended")
                        .push(copying);
                }
            }
            Operation::EndGroup => {
                lanes(chosen).for_each(|lane| warp.copies[lane].push_back(Vec::new()));
            }
            Operation::WaitForGroups(later) => {
                for lane in lanes(chosen) {
                    let clock = self.clock(warp, lane);
                    while warp.copies[lane].len() > later + 1 {
                        for copying in warp.copies[lane].pop_front().into_iter().flatten() {
                            let piece = self.take(&copying, &clock);
                            let piece =
                                piece.map_err(|fault| wrong(lane, fault, "a copy's source"))?;
                            self.shared
                                .end_copy(copying.to, copying.bytes, &piece, &clock);
                        }
                    }
                }
            }
            Operation::Branch(target) => return Ok(Next::At(*target)),
            Operation::Return => return Ok(Next::End),
            Operation::Barrier => return Ok(Next::Barrier),
            Operation::Hint => {}
            Operation::WarpBarrier { .. }
            | Operation::Shuffle { .. }
            | Operation::Products { .. } => unreachable!("lanes do this together"),
        }
        Ok(Next::Following)
    }

    fn clock(&self, warp: &Warp, lane: usize) -> Clock {
        Clock {
            launch: self.given.launch,
            run: self.run,
            barrier: self.barrier,
            sync: warp.sync,
            thread: warp.number * WARP + lane,
        }
    }

    fn take(&mut self, copying: &Copying, clock: &Clock) -> Result<Piece, Fault> {
        let (tracked, at) = self.global.find(copying.from)?;
        tracked.load(at, copying.bytes, clock)
    }

    fn load(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        space: Space,
        element: Element,
        to: &[usize],
        from: Place,
    ) -> Result<(), Wrong> {
        let n = element.bytes * to.len();
        if self.is_any_entry(warp, lane, from, n) {
            for &register in to {
                warp.unmeant[register][lane] = u64::MAX;
            }
            return Ok(());
        }
        let address = warp.address(from, lane)?;
        let clock = self.clock(warp, lane);
        let constant = match space {
            Space::Param => {
                let found = self
                    .given
                    .params
                    .get(address as usize..address as usize + n);
                Some((found, address, "arguments"))
            }
            Space::Global | Space::Generic if address >= TABLES => {
                let at = address - TABLES;
                let found = self.given.program.tables.get(at..at + n as u64);
                Some((found, at, "constants"))
            }
            _ => None,
        };
        let piece = match constant {
            Some((found, at, place)) => {
                let found = found.ok_or_else(|| wrong(lane, Fault::OutOfBounds, place))?;
                if !at.is_multiple_of(n as u64) {
                    return Err(wrong(lane, Fault::Misaligned, place));
                }
                let mut piece = Piece::default();
                piece.bytes[..n].copy_from_slice(found);
                piece
            }
            None => {
                let (tracked, at, place) = self.tracked(warp, space, address, lane)?;
                let loaded = tracked.load(at, n, &clock);
                loaded.map_err(|fault| wrong(lane, fault, place))?
            }
        };
        for (i, &register) in to.iter().enumerate() {
            let range = i * element.bytes..(i + 1) * element.bytes;
            warp.registers[register][lane] = element.extended(&piece.bytes[range.clone()]);
            warp.unmeant[register][lane] = element.extended(&piece.unmeant[range]);
        }
        Ok(())
    }

    /// Returns true if an address is undefined but surely in one table of constants, so that reading it is harmless.
    fn is_any_entry(&self, warp: &Warp, lane: usize, from: Place, n: usize) -> bool {
        let mask = warp.unmeant[from.base][lane];
        let address = warp.registers[from.base][lane];
        let (least, largest) = (address & !mask, address | mask);
        let offset = from.offset.wrapping_sub(TABLES);
        let (start, end) = (least.wrapping_add(offset), largest.wrapping_add(offset));
        let tables = &self.given.program.tables;
        mask != 0
            && start <= end
            && end
                .checked_add(1)
                .is_some_and(|end| tables.get(start..end).is_some())
            && from.offset.is_multiple_of(n as u64)
    }

    fn store(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        space: Space,
        element: Element,
        to: Place,
        from: &[usize],
    ) -> Result<(), Wrong> {
        let address = warp.address(to, lane)?;
        let mut piece = Piece::default();
        for (i, &register) in from.iter().enumerate() {
            let range = i * element.bytes..(i + 1) * element.bytes;
            let low = |lanes: &Lanes| lanes[lane].to_le_bytes();
            piece.bytes[range.clone()]
                .copy_from_slice(&low(&warp.registers[register])[..element.bytes]);
            piece.unmeant[range].copy_from_slice(&low(&warp.unmeant[register])[..element.bytes]);
        }
        let clock = self.clock(warp, lane);
        let (tracked, at, place) = self.tracked(warp, space, address, lane)?;
        let stored = tracked.store(at, element.bytes * from.len(), &piece, &clock);
        stored.map_err(|fault| wrong(lane, fault, place))
    }

    /// Returns the memory that contains an address, the offset in it, and its name.
    fn tracked<'t>(
        &'t mut self,
        warp: &'t mut Warp,
        space: Space,
        address: u64,
        lane: usize,
    ) -> Result<(&'t mut Tracked, usize, &'static str), Wrong> {
        let in_shared = address.wrapping_sub(SHARED);
        match space {
            Space::Local => Ok((&mut warp.local[lane], address as usize, "its own memory")),
            Space::Shared => Ok((&mut self.shared, address as usize, "shared memory")),
            Space::Generic if in_shared < SHARED => {
                Ok((&mut self.shared, in_shared as usize, "shared memory"))
            }
            _ => {
                let found = self.global.find(address);
                let (tracked, at) = found.map_err(|fault| wrong(lane, fault, "global memory"))?;
                Ok((tracked, at, "global memory"))
            }
        }
    }
}

impl Warp {
    /// Returns the lanes in which an instruction's guard predicate holds.
    fn guarded(&self, instruction: &Instruction, here: u32) -> Result<u32, Wrong> {
        let Some((register, wanted)) = instruction.guard else {
            return Ok(u32::MAX);
        };
        if let Some(lane) = lanes(here).find(|&lane| self.unmeant[register][lane] & 1 == 1) {
            return Err(Wrong::new(lane, "depends on what nobody has written"));
        }
        let predicate = &self.registers[register];
        let is_chosen = |lane: &usize| (predicate[*lane] & 1 == 1) == wanted;
        Ok((0..WARP)
            .filter(is_chosen)
            .fold(0, |mask, lane| mask | 1 << lane))
    }

    /// Sets values and masks of a register in some lanes.
    fn set(&mut self, register: usize, chosen: u32, values: &Lanes, masks: &Lanes) {
        for lane in lanes(chosen) {
            self.registers[register][lane] = values[lane];
            self.unmeant[register][lane] = masks[lane];
        }
    }

    /// Returns the lanes that must participate in a warp-level instruction; `None` for other instructions.
    fn members(&self, operation: &Operation, chosen: u32) -> Result<Option<u32>, Wrong> {
        let said = match operation {
            Operation::WarpBarrier { members } => Some(*members),
            Operation::Shuffle { from, .. } => Some(from[3]),
            Operation::Products { .. } => None,
            _ => return Ok(None),
        };
        let Some(lane) = lanes(chosen).next() else {
            return Ok(None);
        };
        let members = said.map_or(u32::MAX, |register| self.registers[register][lane] as u32);
        let all_alike = said.is_none_or(|register| {
            lanes(chosen).all(|lane| self.registers[register][lane] as u32 == members)
        });
        match all_alike && chosen & !members == 0 {
            true => Ok(Some(members)),
            false => Err(Wrong::new(lane, "lanes do not agree on who takes part")),
        }
    }

    /// Executes a warp-level instruction.
    fn together(&mut self, operation: &Operation, members: u32) {
        match operation {
            // A barrier of some lanes orders nothing here: that would need a clock per set of lanes.
            Operation::WarpBarrier { .. } if members == u32::MAX => self.sync += 1,
            Operation::WarpBarrier { .. } => {}
            Operation::Shuffle {
                how,
                to,
                is_within,
                from,
            } => {
                let [values, lane_of, segments, _] = from.map(|from| self.registers[from]);
                let [masks, of_lane, ..] = from.map(|from| self.unmeant[from]);
                for lane in lanes(members) {
                    let (other, within) = source(*how, lane, lane_of[lane], segments[lane]);
                    let other = if within { other } else { lane };
                    // The value of a lane that does not participate is undefined.
                    let is_there = members >> other & 1 == 1 && of_lane[lane] == 0;
                    self.unmeant[*to][lane] = if is_there { masks[other] } else { u64::MAX };
                    self.registers[*to][lane] = values[other];
                    if let Some(register) = is_within {
                        self.registers[*register][lane] = u64::from(within);
                        self.unmeant[*register][lane] = of_lane[lane];
                    }
                }
            }
            Operation::Products { to, a, b, c } => {
                fn of<'l>(lanes: &'l [Lanes], registers: &[usize]) -> Vec<&'l Lanes> {
                    registers.iter().map(|&register| &lanes[register]).collect()
                }
                let Warp {
                    registers, unmeant, ..
                } = self;
                let (values, masks) = (
                    [&*of(registers, a), &of(registers, b)],
                    [&*of(unmeant, a), &of(unmeant, b)],
                );
                let (made, masks) = (
                    products(values[0], values[1]),
                    products_unmeant(values, masks),
                );
                let before = c.map(|register| (registers[register], unmeant[register]));
                for (i, (sum, mask)) in before.into_iter().enumerate() {
                    registers[to[i]] = std::array::from_fn(|lane| {
                        u64::from((sum[lane] as u32).wrapping_add(made[i][lane] as u32))
                    });
                    let is_meant = |lane: usize| mask[lane] | masks[i][lane] == 0;
                    unmeant[to[i]] =
                        std::array::from_fn(|lane| if is_meant(lane) { 0 } else { u64::MAX });
                }
            }
            _ => unreachable!("lanes do nothing else together"),
        }
    }

    fn stop(&mut self, mask: u32, at: usize, state: State) {
        for lane in lanes(mask) {
            self.at[lane] = at;
            self.states[lane] = state;
        }
    }

    fn address(&self, place: Place, lane: usize) -> Result<u64, Wrong> {
        match self.unmeant[place.base][lane] {
            0 => Ok(self.registers[place.base][lane].wrapping_add(place.offset)),
            _ => Err(Wrong::new(
                lane,
                "an address that depends on what nobody has written",
            )),
        }
    }
}

/// Returns the lanes of a mask.
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP).filter(move |lane| mask >> lane & 1 == 1)
}

/// Returns the values of a special register such as `%tid.x`.
fn special(name: &str, warp: usize, place: [u32; 3], n_thread: usize) -> Lanes {
    let of_block = |axis: &str| u64::from(place[usize::from(axis.as_bytes()[0] - b'x')]);
    match name.split_once('.') {
        Some(("%tid", "x")) => std::array::from_fn(|lane| (warp * WARP + lane) as u64),
        Some(("%tid", _)) => [0; WARP],
        Some(("%ctaid", axis)) => [of_block(axis); WARP],
        Some(("%ntid", "x")) => [n_thread as u64; WARP],
        Some(("%ntid", _)) => [1; WARP],
        _ => panic!("{name} is not known"),
    }
}

/// Returns the source lane, and whether it lies in the segment: "shfl.sync".
fn source(how: Shuffle, lane: usize, wanted: u64, segments: u64) -> (usize, bool) {
    let (wanted, clamp, segment) = (wanted & 31, segments & 31, segments >> 8 & 31);
    let lane = lane as u64;
    let last = lane & segment | clamp & !segment;
    let first = lane & segment;
    let from = match how {
        Shuffle::Index => first | wanted & !segment,
        Shuffle::Butterfly => lane ^ wanted,
    };
    (from as usize, from <= last)
}

fn wrong(lane: usize, fault: Fault, place: &str) -> Wrong {
    let what = match fault {
        Fault::OutOfBounds => "outside of what was allocated",
        Fault::Misaligned => "at no multiple of its length",
        Fault::Written => "what another thread has written, with no barrier in between",
        Fault::Read => "what another thread has read, with no barrier in between",
        Fault::UnderWay => "where a copy is under way",
    };
    Wrong::new(lane, format!("{what}, in {place}"))
}
