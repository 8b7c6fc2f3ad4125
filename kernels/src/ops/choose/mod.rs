//! Choice of the most likely tokens.

pub(crate) mod cpu;
pub(crate) mod cuda;

use std::ops::Range;

use crate::backend::Storage;

/// Choice of the most likely tokens.
pub trait ChooseOp: Storage {
    /// Returns storage for `n` chosen tokens.
    fn chosen(&self, n: usize) -> Self::Chosen;

    /// Chooses the [`Largest`] element of each row of `dim` elements and stores it in `places`, one row per
    /// place. With `names`, `(dim)`, the stored `index` is `names[index]`.
    fn choose(
        &self,
        x: &Self::Buffer,
        dim: usize,
        names: Option<&[u32]>,
        chosen: &mut Self::Chosen,
        places: Range<usize>,
    );

    /// Copies chosen tokens from place `at` on to host memory.
    fn download_chosen(&self, chosen: &Self::Chosen, at: usize, dst: &mut [Largest]);

    /// [`EmbedOp::embed`] of the tokens chosen at `places`. Every token must be a row of the table.
    fn embed_chosen(
        &self,
        table: &Self::Weight,
        chosen: &Self::Chosen,
        places: &[usize],
        out: &mut Self::Buffer,
    );
}

/// The largest element of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Largest {
    /// Its index in the row, or the token that this index stands for.
    pub index: u32,
    /// Its value. NaN or infinite if the row contains NaN or infinity.
    pub value: f32,
}

impl Largest {
    /// Returns the largest element of a non-empty row, the first one if several are equal; zeros of either
    /// sign are equal. NaN ranks as infinity, so that it is not missed.
    #[inline(always)]
    pub fn of(row: &[f32]) -> Largest {
        let most = row.iter().map(|&x| rank(x)).fold(i32::MIN, i32::max);
        // A loop with an early exit is not vectorised, so this finds the part that holds the maximum
        // first.
        let has = |part: &[f32]| part.iter().fold(false, |has, &x| has | (rank(x) == most));
        let parts = row.chunks(PART);
        let start = parts.take_while(|part| !has(part)).count() * PART;
        let index = row[start..].iter().position(|&x| rank(x) == most);
        let index = start + index.expect("a row that is not empty");
        Largest {
            index: index as u32,
            value: row[index],
        }
    }

    /// Returns the largest element of a row from those of its parts, which have `len` elements each, except the last.
    pub(crate) fn of_parts(parts: &[Largest], len: usize) -> Largest {
        let parts = parts.iter().enumerate().map(|(i, part)| Largest {
            index: (i * len) as u32 + part.index,
            value: part.value,
        });
        let larger = |a: Largest, b: Largest| match rank(b.value) > rank(a.value) {
            true => b,
            false => a,
        };
        parts.reduce(larger).expect("a row that is not empty")
    }
}

/// Maps a number to an integer of the same order.
#[inline(always)]
fn rank(x: f32) -> i32 {
    let bits = (x + 0.0).to_bits() as i32;
    let rank = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    if x.is_nan() {
        f32::INFINITY.to_bits() as i32
    } else {
        rank
    }
}

/// Elements per part of the search.
const PART: usize = 64;
