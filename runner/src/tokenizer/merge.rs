//! Merging: of all neighbours the most urgent first, until no two go together. Byte-level BPE and
//! SentencePiece differ only in what goes together, and how urgently.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A run and its neighbours.
struct Place<R> {
    /// `None` once it has been merged into one before it.
    run: Option<R>,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that go together.
struct Pair<R, U> {
    urgency: U,
    /// Where they are.
    left: usize,
    right: usize,
    /// What they were when they were found; outdated if they are something else now.
    runs: (R, R),
    /// What they make.
    merged: R,
}

/// The most urgent first, of equal ones the leftmost.
impl<R, U: Ord> Ord for Pair<R, U> {
    fn cmp(&self, other: &Self) -> Ordering {
        let urgency = self.urgency.cmp(&other.urgency);
        urgency.then(other.left.cmp(&self.left))
    }
}

impl<R, U: Ord> PartialOrd for Pair<R, U> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R, U: Ord> PartialEq for Pair<R, U> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<R, U: Ord> Eq for Pair<R, U> {}

/// What is left of a row of runs when all that go together have been merged. `join` gives the
/// urgency of two neighbours and what they make.
pub(super) fn merge<R: Copy + PartialEq, U: Ord>(
    runs: impl Iterator<Item = R>,
    join: impl Fn(R, R) -> Option<(U, R)>,
) -> impl Iterator<Item = R> {
    let place = |(i, run): (usize, R)| Place {
        run: Some(run),
        previous: i.checked_sub(1),
        next: Some(i + 1),
    };
    let mut places: Vec<Place<R>> = runs.enumerate().map(place).collect();
    if let Some(last) = places.last_mut() {
        last.next = None;
    }
    let pair = |places: &[Place<R>], left: usize, right: usize| {
        let runs = (places[left].run?, places[right].run?);
        let (urgency, merged) = join(runs.0, runs.1)?;
        Some(Pair {
            urgency,
            left,
            right,
            runs,
            merged,
        })
    };
    let neighbours = (1..places.len()).filter_map(|right| pair(&places, right - 1, right));
    let mut pairs: BinaryHeap<_> = neighbours.collect();
    while let Some(found) = pairs.pop() {
        let (left, right) = (found.left, found.right);
        if (places[left].run, places[right].run) != (Some(found.runs.0), Some(found.runs.1)) {
            continue;
        }
        places[left].run = Some(found.merged);
        places[right].run = None;
        places[left].next = places[right].next;
        if let Some(next) = places[left].next {
            places[next].previous = Some(left);
            pairs.extend(pair(&places, left, next));
        }
        if let Some(previous) = places[left].previous {
            pairs.extend(pair(&places, previous, left));
        }
    }
    places.into_iter().filter_map(|place| place.run)
}
