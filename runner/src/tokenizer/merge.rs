//! Merging: the neighbouring pair with the highest priority is merged first, until no pair can be
//! merged. Byte-level BPE and SentencePiece differ only in the pairs and their priority.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A symbol and its neighbours.
struct Place<R> {
    /// `None` after it was merged into a previous one.
    run: Option<R>,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that can be merged.
struct Pair<R, U> {
    urgency: U,
    /// Their indices.
    left: usize,
    right: usize,
    /// The symbols when the pair was found; it is outdated if they have changed.
    runs: (R, R),
    /// The merged symbol.
    merged: R,
}

/// Highest priority first, the leftmost among equals.
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

/// Merges symbols until no pair can be merged, and returns the rest. `join` returns the priority of
/// two neighbours and the merged symbol.
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
