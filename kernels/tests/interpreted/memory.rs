//! Memory that records the last reader and writer of each byte. It detects reads of uninitialised bytes and
//! races between threads.

use std::ops::Range;

/// Threads of a warp.
pub(super) const WARP: usize = 32;

/// The last access to a byte: thread and time, in the order of [`Clock`]. Later accesses are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp(u64);

impl Stamp {
    /// Never accessed.
    const NEVER: Stamp = Stamp(0);
    /// The host.
    const HOST: Stamp = Stamp(1);
    /// An asynchronous copy that has not been waited for.
    const UNDER_WAY: Stamp = Stamp(u64::MAX);

    const WHO_BITS: u32 = 11;
    const SYNC_BITS: u32 = 16;
    const BARRIER_BITS: u32 = 14;

    /// Thread numbers that stand for several threads, above those of a block: of a warp, of a block, of
    /// several blocks.
    const OF_WARP: u64 = 1024;
    const OF_BLOCK: u64 = 2046;
    const OF_GRID: u64 = 2047;

    fn new(run: u64, barrier: u64, sync: u64, who: u64) -> Stamp {
        let run = (run << Stamp::BARRIER_BITS) + barrier;
        Stamp((((run << Stamp::SYNC_BITS) + sync) << Stamp::WHO_BITS) + who)
    }

    fn run(self) -> u64 {
        self.0 >> (Stamp::WHO_BITS + Stamp::SYNC_BITS + Stamp::BARRIER_BITS)
    }

    fn sync(self) -> u64 {
        self.0 >> Stamp::WHO_BITS & ((1 << Stamp::SYNC_BITS) - 1)
    }

    fn who(self) -> u64 {
        self.0 & ((1 << Stamp::WHO_BITS) - 1)
    }

    /// Returns the warp of the thread or threads.
    fn warp(self) -> Option<u64> {
        match self.who() {
            who if who < Stamp::OF_WARP => Some(who / WARP as u64),
            who if who < Stamp::OF_WARP + WARP as u64 => Some(who - Stamp::OF_WARP),
            _ => None,
        }
    }
}

/// The current time of a thread.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    /// Number of the launch's first block, counting all blocks that ever ran, from 1.
    pub(super) launch: u64,
    /// Number of its own block, counted likewise.
    pub(super) run: u64,
    /// Barriers that its block has passed.
    pub(super) barrier: u64,
    /// Barriers that its warp has passed since then.
    pub(super) sync: u64,
    /// Index in the block.
    pub(super) thread: usize,
}

impl Clock {
    /// Maximum number of blocks that can be distinguished.
    pub(super) const MOST_RUNS: u64 = 1 << 22;

    fn stamp(&self, who: u64) -> Stamp {
        assert!(self.barrier < 1 << Stamp::BARRIER_BITS && self.sync < 1 << Stamp::SYNC_BITS);
        Stamp::new(self.run, self.barrier, self.sync, who)
    }

    fn own(&self) -> Stamp {
        self.stamp(self.thread as u64)
    }

    fn warp(&self) -> u64 {
        (self.thread / WARP) as u64
    }

    /// Returns true if the access happened before the current point of this thread.
    fn is_behind(&self, then: Stamp) -> bool {
        if then < Stamp::new(self.launch, 0, 0, 0) {
            return true;
        }
        if then.run() != self.run || then.who() == Stamp::OF_GRID {
            return false;
        }
        then < Stamp::new(self.run, self.barrier, 0, 0)
            || then.who() == self.thread as u64
            || then.warp() == Some(self.warp()) && then.sync() < self.sync
    }

    /// Returns the stamp of the readers after this thread has read, too.
    fn joined(&self, before: Stamp) -> Stamp {
        if self.is_behind(before) {
            self.own()
        } else if before.run() != self.run {
            self.stamp(Stamp::OF_GRID)
        } else if before.warp() == Some(self.warp()) {
            self.stamp(Stamp::OF_WARP + self.warp())
        } else {
            self.stamp(before.who().max(Stamp::OF_BLOCK))
        }
    }
}

/// Memory faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    OutOfBounds,
    Misaligned,
    /// Written by another thread, without a barrier in between.
    Written,
    /// Written after a read by another thread, without a barrier in between.
    Read,
    /// The target of an asynchronous copy that has not completed.
    UnderWay,
}

/// Memory with access records.
pub(super) struct Tracked {
    bytes: Vec<u8>,
    /// Mask of undefined bits.
    unmeant: Vec<u8>,
    written: Vec<Stamp>,
    read: Vec<Stamp>,
}

/// Contents of unwritten memory.
const UNWRITTEN: u8 = 0xa5;

impl Tracked {
    pub(super) fn new(len: usize) -> Tracked {
        Tracked {
            bytes: vec![UNWRITTEN; len],
            unmeant: vec![u8::MAX; len],
            written: vec![Stamp::NEVER; len],
            read: vec![Stamp::NEVER; len],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Marks all accesses of earlier kernels as complete.
    pub(super) fn settle(&mut self) {
        for written in &mut self.written {
            *written = (*written).min(Stamp::HOST);
        }
        self.read.fill(Stamp::NEVER);
    }

    /// Reads for the host; `None` if some bytes were never written.
    pub(super) fn get(&self, at: usize, n: usize) -> Option<&[u8]> {
        let is_meant = self.unmeant[at..][..n].iter().all(|&mask| mask == 0);
        is_meant.then(|| &self.bytes[at..][..n])
    }

    /// Writes from the host.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..][..bytes.len()].copy_from_slice(bytes);
        self.unmeant[at..][..bytes.len()].fill(0);
        self.written[at..][..bytes.len()].fill(Stamp::HOST);
    }

    /// Reads a value and its mask, at an address that is a multiple of its length.
    pub(super) fn load(&mut self, at: usize, n: usize, clock: &Clock) -> Result<Piece, Fault> {
        let range = self.readable(at, n, clock)?;
        let mut piece = Piece::default();
        piece.bytes[..n].copy_from_slice(&self.bytes[range.clone()]);
        piece.unmeant[..n].copy_from_slice(&self.unmeant[range]);
        Ok(piece)
    }

    /// Writes a value, at an address that is a multiple of its length.
    pub(super) fn store(
        &mut self,
        at: usize,
        n: usize,
        piece: &Piece,
        clock: &Clock,
    ) -> Result<(), Fault> {
        let range = self.writable(at, n, clock)?;
        self.put_piece(range, piece, clock);
        Ok(())
    }

    /// Starts an asynchronous copy: from here on the contents are undefined.
    pub(super) fn begin_copy(&mut self, at: usize, n: usize, clock: &Clock) -> Result<(), Fault> {
        let range = self.writable(at, n, clock)?;
        self.written[range].fill(Stamp::UNDER_WAY);
        Ok(())
    }

    /// Completes an asynchronous copy for the thread that started it.
    pub(super) fn end_copy(&mut self, at: usize, n: usize, piece: &Piece, clock: &Clock) {
        self.put_piece(at..at + n, piece, clock);
    }

    fn put_piece(&mut self, range: Range<usize>, piece: &Piece, clock: &Clock) {
        let n = range.len();
        self.bytes[range.clone()].copy_from_slice(&piece.bytes[..n]);
        self.unmeant[range.clone()].copy_from_slice(&piece.unmeant[..n]);
        self.written[range].fill(clock.own());
    }

    fn readable(&mut self, at: usize, n: usize, clock: &Clock) -> Result<Range<usize>, Fault> {
        let range = self.range(at, n)?;
        let written = &self.written[range.clone()];
        if let Some(&other) = written.iter().find(|&&written| !clock.is_behind(written)) {
            return Err(is_under_way(other).unwrap_or(Fault::Written));
        }
        for read in &mut self.read[range.clone()] {
            *read = clock.joined(*read);
        }
        Ok(range)
    }

    fn writable(&self, at: usize, n: usize, clock: &Clock) -> Result<Range<usize>, Fault> {
        let range = self.range(at, n)?;
        let is_open = |stamp: &&Stamp| !clock.is_behind(**stamp);
        if let Some(&other) = self.written[range.clone()].iter().find(is_open) {
            return Err(is_under_way(other).unwrap_or(Fault::Written));
        }
        match self.read[range.clone()].iter().find(is_open) {
            Some(_) => Err(Fault::Read),
            None => Ok(range),
        }
    }

    fn range(&self, at: usize, n: usize) -> Result<Range<usize>, Fault> {
        if at + n > self.bytes.len() {
            return Err(Fault::OutOfBounds);
        }
        if !at.is_multiple_of(n) {
            return Err(Fault::Misaligned);
        }
        Ok(at..at + n)
    }
}

fn is_under_way(written: Stamp) -> Option<Fault> {
    (written == Stamp::UNDER_WAY).then_some(Fault::UnderWay)
}

/// The value that one instruction moves in one lane.
#[derive(Clone, Copy, Default)]
pub(super) struct Piece {
    pub(super) bytes: [u8; 16],
    /// Mask of undefined bits.
    pub(super) unmeant: [u8; 16],
}

/// Device memory: allocations at multiples of 256, with gaps between them.
#[derive(Default)]
pub(super) struct Global {
    /// By ascending address.
    allocations: Vec<(u64, Tracked)>,
    end: u64,
    /// Index of the allocation used last.
    last: usize,
}

impl Global {
    const FIRST: u64 = 1 << 40;
    const GAP: u64 = 4096;

    pub(super) fn allocate(&mut self, bytes: usize) -> u64 {
        let bytes = bytes.max(1).next_multiple_of(256);
        let address = self.end.max(Global::FIRST) + Global::GAP;
        self.end = address + bytes as u64;
        self.allocations.push((address, Tracked::new(bytes)));
        address
    }

    pub(super) fn free(&mut self, address: u64) {
        self.allocations.retain(|&(at, _)| at != address);
    }

    pub(super) fn settle(&mut self) {
        for (_, tracked) in &mut self.allocations {
            tracked.settle();
        }
    }

    /// Returns the allocation that contains an address, and the offset in it.
    pub(super) fn find(&mut self, address: u64) -> Result<(&mut Tracked, usize), Fault> {
        let holds =
            |(at, tracked): &(u64, Tracked)| *at <= address && address < at + tracked.len() as u64;
        if !self.allocations.get(self.last).is_some_and(holds) {
            let behind = self.allocations.partition_point(|&(at, _)| at <= address);
            self.last = behind.checked_sub(1).ok_or(Fault::OutOfBounds)?;
            if !holds(&self.allocations[self.last]) {
                return Err(Fault::OutOfBounds);
            }
        }
        let (at, tracked) = &mut self.allocations[self.last];
        Ok((tracked, (address - *at) as usize))
    }
}
