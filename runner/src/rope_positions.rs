//! Positions with three coordinates (M-RoPE): the time, the height and the width of a part of an image.
//!
//! Tokens have one position, which is the same in all coordinates. The parts of an image have less positions
//! than rows, so the token after an image does not have the index of its row: its position is one more than the
//! largest coordinate before it.

use crate::batch::{Batch, Embedding, NO_TOKEN};

/// Number of coordinates.
pub const N_AXES: usize = 3;

/// Position of a part of an image: time, height, width.
pub type Coordinates = [u32; N_AXES];

/// The coordinates of the rows of a pass, for each axis.
pub type Axes = [Vec<u32>; N_AXES];

/// Differences between the positions and the indices of the tokens of one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct RopePositions {
    /// Ascending.
    spans: Vec<Span>,
}

/// Rows with the same difference.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Index of the first row.
    from: u32,
    /// Position minus index.
    shift: i64,
}

impl RopePositions {
    /// True if every token has the position of its index.
    pub(crate) fn are_indices(&self) -> bool {
        self.spans.is_empty()
    }

    /// Drops the rows from index `len` on.
    pub(crate) fn truncate(&mut self, len: u32) {
        self.spans.retain(|span| span.from <= len);
    }

    /// Drops all rows; the next one has index `at`. A later text keeps its difference.
    pub(crate) fn restart(&mut self, at: u32) {
        let shift = self.shift(at);
        self.spans.clear();
        if at > 0 && shift != 0 {
            self.spans.push(Span { from: 0, shift });
        }
    }

    fn shift(&self, index: u32) -> i64 {
        let n = self.spans.partition_point(|span| span.from <= index);
        n.checked_sub(1).map_or(0, |last| self.spans[last].shift)
    }

    /// Adds a row, and returns its coordinates. Rows at and after its index are replaced.
    fn add(&mut self, index: u32, embedding: Option<&Embedding>) -> Coordinates {
        let shift = self.shift(index);
        let position = (i64::from(index) + shift).clamp(0, u32::MAX.into()) as u32;
        let Some(own) = embedding.and_then(|embedding| embedding.position) else {
            return [position; N_AXES];
        };
        let largest = own.into_iter().max().unwrap_or_default();
        let next = i64::from(position.max(largest.saturating_add(1)));
        let from = index + 1;
        self.spans.retain(|span| span.from < from);
        let next_shift = next - i64::from(from);
        if next_shift != shift {
            self.spans.push(Span {
                from,
                shift: next_shift,
            });
        }
        own
    }
}

/// Returns the coordinates of the rows of a batch, if some row's are not its index; `sequences` has the
/// positions of each sequence so far.
pub(crate) fn axes(sequences: &mut [RopePositions], batch: &Batch) -> Option<Axes> {
    let own = batch.embeddings.iter().any(|e| e.position.is_some());
    let mut runs = batch.runs();
    if !own && runs.all(|run| sequences[run.seq].are_indices()) {
        return None;
    }
    let mut axes = Axes::default();
    let mut embeddings = batch.embeddings.iter();
    for row in 0..batch.len() {
        // Tokens that are chosen on a device are unknown here, and there are no embeddings with them.
        let embedding = match batch.tokens[row] {
            NO_TOKEN => embeddings.next(),
            _ => None,
        };
        let sequence = &mut sequences[batch.seqs[row]];
        let coordinates = sequence.add(batch.positions[row], embedding);
        for (axis, coordinate) in axes.iter_mut().zip(coordinates) {
            axis.push(coordinate);
        }
    }
    Some(axes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Outputs, Text};

    /// Two tokens, an image of one by two by three parts, two tokens.
    fn text() -> Text {
        let parts = (0..6u32).map(|i| {
            let embedding: Embedding = [0.0].into_iter().collect();
            embedding.at([2, 2 + i / 3, 2 + i % 3])
        });
        let image = [NO_TOKEN; 6];
        Text {
            tokens: [&[7, 7][..], &image, &[7, 7]].concat(),
            embeddings: parts.collect(),
        }
    }

    fn of(sequences: &mut [RopePositions], from: usize, to: usize) -> Option<Axes> {
        let mut batch = Batch::default();
        batch.push_slice(0, from as u32, text().slice(from..to), Outputs::None);
        axes(sequences, &batch)
    }

    #[test]
    fn tokens_after_an_image_continue_after_its_largest_coordinate() {
        let expected: Axes = [
            vec![0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
            vec![0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
            vec![0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
        ];
        assert_eq!(
            of(&mut [RopePositions::default()], 0, 10),
            Some(expected.clone())
        );
        // The same in pieces, and after a rollback.
        let mut sequences = [RopePositions::default()];
        let mut joined = Axes::default();
        for (from, to) in [(0, 2), (2, 5), (5, 9), (9, 10)] {
            let found = of(&mut sequences, from, to)
                .unwrap_or_else(|| std::array::from_fn(|_| (from as u32..to as u32).collect()));
            for (joined, found) in joined.iter_mut().zip(found) {
                joined.extend(found);
            }
        }
        assert_eq!(joined, expected);
        sequences[0].truncate(4);
        let again = of(&mut sequences, 4, 10).unwrap();
        assert_eq!(again[2], expected[2][4..]);
        sequences[0].truncate(1);
        assert_eq!(of(&mut sequences, 1, 2), None);
    }

    #[test]
    fn a_restart_keeps_the_difference() {
        let mut sequences = [RopePositions::default()];
        of(&mut sequences, 0, 9);
        sequences[0].restart(9);
        assert_eq!(of(&mut sequences, 9, 10).unwrap()[0], [6]);
        sequences[0].restart(0);
        assert_eq!(of(&mut sequences, 0, 1), None);
    }
}
