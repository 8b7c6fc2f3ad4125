//! Statistics of a tensor's values, and defects that no working weight has. Tensors are read in chunks of
//! rows, so memory does not grow with their size. This module does not know tensor names; the caller knows
//! the role of a tensor and decides what follows.

use schemas::gguf::{SourceError, Tensor};
use schemas::report::ValuesReport;

use crate::simd::dispatch::chosen;
use crate::simd::{KernelInto, Simd};
use crate::types::{Codec, codec};

/// Bytes that are read at a time; a longer row is read alone.
const CHUNK_BYTES: u64 = 1 << 20;

/// Range of magnitudes of real weights. Packed data read as floats has arbitrary exponents.
const SMALLEST: f32 = 1.0 / (1u64 << 40) as f32;
const LARGEST: f32 = 1024.0;
/// Share of values outside that range above which data is taken for packed data.
const MAX_IMPLAUSIBLE_SHARE: f64 = 0.25;
/// Ratio of the magnitudes of two parts of the columns above which the smaller part has practically no
/// effect.
pub const MAX_PARTS_RATIO: f64 = 30.0;
/// Difference between the mean of a norm and its siblings if the +1 offset is missing or was added twice.
const OFF_BY_ONE: std::ops::RangeInclusive<f64> = 0.7..=1.3;
/// Minimum number of rows, or columns, for a meaningful spread.
const MIN_LINES: usize = 32;

/// Accumulated statistics of values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Values {
    n: u64,
    sum: f64,
    squares: f64,
    fourths: f64,
    min: f32,
    max: f32,
    n_zero: u64,
    n_negative: u64,
    n_not_finite: u64,
    n_implausible: u64,
}

impl Values {
    /// Adds a row. Sums are accumulated in lanes, which the compiler vectorises.
    fn add_all(&mut self, row: &[f32]) {
        let (blocks, rest) = row.as_chunks::<{ Lanes::N }>();
        let mut lanes = Lanes::default();
        for block in blocks {
            if block.iter().fold(true, |all, x| all & x.is_finite()) {
                lanes.add(block)
            } else {
                block.iter().for_each(|&x| self.add(x))
            }
        }
        *self = self.and(&lanes.values());
        rest.iter().for_each(|&x| self.add(x));
    }

    fn add(&mut self, x: f32) {
        if !x.is_finite() {
            self.n_not_finite += 1;
            return;
        }
        if self.n == 0 {
            (self.min, self.max) = (x, x);
        }
        let square = f64::from(x) * f64::from(x);
        self.n += 1;
        self.sum += f64::from(x);
        self.squares += square;
        self.fourths += square * square;
        self.min = self.min.min(x);
        self.max = self.max.max(x);
        self.n_zero += u64::from(x == 0.0);
        self.n_negative += u64::from(x < 0.0);
        self.n_implausible += u64::from(x != 0.0 && !(SMALLEST..=LARGEST).contains(&x.abs()));
    }

    /// Combines the statistics of two sets.
    pub fn and(&self, other: &Values) -> Values {
        let (min, max) = match (self.n, other.n) {
            (0, _) => (other.min, other.max),
            (_, 0) => (self.min, self.max),
            _ => (self.min.min(other.min), self.max.max(other.max)),
        };
        Values {
            n: self.n + other.n,
            sum: self.sum + other.sum,
            squares: self.squares + other.squares,
            fourths: self.fourths + other.fourths,
            min,
            max,
            n_zero: self.n_zero + other.n_zero,
            n_negative: self.n_negative + other.n_negative,
            n_not_finite: self.n_not_finite + other.n_not_finite,
            n_implausible: self.n_implausible + other.n_implausible,
        }
    }

    /// Root of the mean square.
    pub fn rms(&self) -> f64 {
        (self.squares / self.n.max(1) as f64).sqrt()
    }

    /// Mean.
    pub fn mean(&self) -> f64 {
        self.sum / self.n.max(1) as f64
    }

    /// True if all values are zero.
    pub fn is_zero(&self) -> bool {
        self.n_zero == self.n && self.n_not_finite == 0
    }

    /// True if all values are equal and not zero.
    pub fn is_constant(&self) -> bool {
        self.n > 1 && self.n_not_finite == 0 && self.min == self.max && self.min != 0.0
    }

    /// Share of negative values.
    pub fn negative_share(&self) -> f64 {
        self.n_negative as f64 / self.n.max(1) as f64
    }

    /// Share of values with magnitudes that no weight has.
    fn implausible_share(&self) -> f64 {
        let n = self.n + self.n_not_finite;
        (self.n_implausible + self.n_not_finite) as f64 / n.max(1) as f64
    }

    /// Returns the statistics in the form of reports.
    pub fn report(&self) -> ValuesReport {
        ValuesReport {
            mean: self.mean(),
            rms: self.rms(),
            min: self.min.into(),
            max: self.max.into(),
            n_zero: self.n_zero,
            n_not_finite: self.n_not_finite,
            n_implausible: self.n_implausible,
        }
    }
}

/// Sums over the finite values of a row, accumulated in order in each lane.
struct Lanes {
    n: u64,
    sum: [f64; Lanes::N],
    squares: [f64; Lanes::N],
    fourths: [f64; Lanes::N],
    min: [f32; Lanes::N],
    max: [f32; Lanes::N],
    n_zero: [u32; Lanes::N],
    n_negative: [u32; Lanes::N],
    n_implausible: [u32; Lanes::N],
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            n: 0,
            sum: [0.0; Lanes::N],
            squares: [0.0; Lanes::N],
            fourths: [0.0; Lanes::N],
            min: [f32::INFINITY; Lanes::N],
            max: [f32::NEG_INFINITY; Lanes::N],
            n_zero: [0; Lanes::N],
            n_negative: [0; Lanes::N],
            n_implausible: [0; Lanes::N],
        }
    }
}

impl Lanes {
    const N: usize = 16;

    fn add(&mut self, block: &[f32; Lanes::N]) {
        self.n += Lanes::N as u64;
        for (i, &x) in block.iter().enumerate() {
            let (wide, magnitude) = (f64::from(x), x.abs());
            self.sum[i] += wide;
            self.squares[i] += wide * wide;
            self.fourths[i] += (wide * wide) * (wide * wide);
            self.min[i] = if x < self.min[i] { x } else { self.min[i] };
            self.max[i] = if x > self.max[i] { x } else { self.max[i] };
            self.n_zero[i] += u32::from(x == 0.0);
            self.n_negative[i] += u32::from(x < 0.0);
            self.n_implausible[i] +=
                u32::from((x != 0.0) & !(SMALLEST..=LARGEST).contains(&magnitude));
        }
    }

    fn values(&self) -> Values {
        let count = |lanes: &[u32]| lanes.iter().map(|&n| u64::from(n)).sum();
        Values {
            n: self.n,
            sum: self.sum.iter().sum(),
            squares: self.squares.iter().sum(),
            fourths: self.fourths.iter().sum(),
            min: self.min.iter().fold(f32::INFINITY, |a, &b| a.min(b)),
            max: self.max.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b)),
            n_zero: count(&self.n_zero),
            n_negative: count(&self.n_negative),
            n_not_finite: 0,
            n_implausible: count(&self.n_implausible),
        }
    }
}

/// Statistics of one of the equal parts into which the columns are split.
#[derive(Clone, Debug)]
pub struct Part {
    /// Statistics of its values.
    pub values: Values,
    /// Variance of the mean squares of rows, relative to that of independent, identically distributed
    /// values: about 1 for noise. `None` if there are too few rows.
    pub row_spread: Option<f64>,
    /// The same for columns.
    pub column_spread: Option<f64>,
    /// Rows and columns.
    n_lines: [usize; 2],
}

impl Part {
    /// Returns true if neither rows nor columns differ more than those of independent random numbers: the
    /// matrix was never trained, or its elements were shuffled. Training makes some rows and columns more
    /// important than others. `None` if there are too few.
    pub fn is_like_noise(&self) -> Option<bool> {
        // Five standard deviations of the variance of so many rows or columns.
        let is_chance = |spread: f64, n: usize| spread < 1.0 + 5.0 * (2.0 / n as f64).sqrt();
        let [n_rows, n_columns] = self.n_lines;
        let (rows, columns) = (self.row_spread?, self.column_spread?);
        Some(is_chance(rows, n_rows) && is_chance(columns, n_columns))
    }
}

/// Statistics of a tensor from one pass over its values.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Statistics of the parts of the columns, from the left.
    pub parts: Vec<Part>,
    /// Number of rows that are all zeros.
    pub n_zero_rows: u64,
    /// The first row that is all zeros.
    pub first_zero_row: Option<u64>,
}

/// A defect that makes a tensor unusable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Defect {
    /// The share of values with magnitudes that no weight has, as in packed data read as floats.
    Implausible(f64),
    /// The number of NaN and infinite values.
    NotFinite(u64),
    /// All values are zero.
    Zero,
    /// A part of the columns that is all zeros while another is not.
    ZeroPart(usize),
}

/// A wrong +1 offset of norm weights, judged by the mean of a sibling norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOffset {
    /// The +1 is missing, for architectures whose checkpoints store norms as w - 1.
    Missing,
    /// The +1 was added twice.
    Twice,
}

/// Compares the mean of a norm's weights with that of a sibling.
pub fn norm_offset(mean: f64, sibling: f64) -> Option<NormOffset> {
    let apart = mean - sibling;
    match OFF_BY_ONE.contains(&apart.abs()) {
        true if apart < 0.0 => Some(NormOffset::Missing),
        true => Some(NormOffset::Twice),
        false => None,
    }
}

impl Survey {
    /// Returns the statistics of all parts together.
    pub fn values(&self) -> Values {
        let parts = self.parts.iter();
        parts.fold(Values::default(), |sum, part| sum.and(&part.values))
    }

    /// Returns the first defect that certainly makes the tensor unusable.
    pub fn defect(&self) -> Option<Defect> {
        let all = self.values();
        if all.implausible_share() > MAX_IMPLAUSIBLE_SHARE {
            return Some(Defect::Implausible(all.implausible_share()));
        }
        if all.n_not_finite > 0 {
            return Some(Defect::NotFinite(all.n_not_finite));
        }
        if all.is_zero() {
            return Some(Defect::Zero);
        }
        let dead = self.parts.iter().position(|part| part.values.is_zero());
        dead.map(Defect::ZeroPart)
    }

    /// Returns the part with the smallest RMS, and the ratio of the largest part's RMS to it.
    pub fn quietest_part(&self) -> Option<(usize, f64)> {
        let rms = |i: &usize| self.parts[*i].values.rms();
        let by_rms = |a: &usize, b: &usize| rms(a).total_cmp(&rms(b));
        let quietest = (0..self.parts.len()).min_by(by_rms)?;
        let loudest = (0..self.parts.len()).max_by(by_rms)?;
        Some((quietest, rms(&loudest) / rms(&quietest)))
    }
}

/// Mean squares of rows and columns of one part, accumulated row by row.
struct Lines {
    values: Values,
    row_squares: f64,
    columns: Vec<f64>,
}

impl Lines {
    fn add_row(&mut self, row: &[f32]) {
        let before = self.values.squares;
        self.values.add_all(row);
        for (&x, column) in row.iter().zip(&mut self.columns) {
            *column += f64::from(x) * f64::from(x);
        }
        let mean = (self.values.squares - before) / row.len().max(1) as f64;
        self.row_squares += mean * mean;
    }

    fn finish(self, n_rows: usize) -> Part {
        let n_columns = self.columns.len();
        let n = self.values.n.max(1) as f64;
        let mean = self.values.squares / n;
        // Variance of the square of a single value.
        let variance = self.values.fourths / n - mean * mean;
        let spread = |squares: f64, n_lines: usize, length: usize| {
            let found = squares / n_lines.max(1) as f64 - mean * mean;
            let chance = variance / length.max(1) as f64;
            Some(found / chance).filter(|x| n_lines >= MIN_LINES && x.is_finite())
        };
        let columns = self.columns.iter().map(|sum| sum / n_rows.max(1) as f64);
        let column_squares = columns.map(|mean| mean * mean).sum();
        Part {
            values: self.values,
            row_spread: spread(self.row_squares, n_rows, n_columns),
            column_spread: spread(column_squares, n_columns, n_rows),
            n_lines: [n_rows, n_columns],
        }
    }
}

/// Computes the statistics of a tensor, its columns split into `n_parts` of equal width; `None` for a type
/// without a codec.
///
/// # Errors
/// The data cannot be read.
pub fn survey(tensor: &Tensor, n_parts: usize) -> Result<Option<Survey>, SourceError> {
    let n_columns = tensor.ne0() as usize;
    let width = n_columns.div_ceil(n_parts.max(1)).max(1);
    let bounds = (0..n_columns).step_by(width);
    let mut parts: Vec<Lines> = bounds
        .map(|start| Lines {
            values: Values::default(),
            row_squares: 0.0,
            columns: vec![0.0; width.min(n_columns - start)],
        })
        .collect();
    let (mut n_zero_rows, mut first_zero_row, mut index) = (0, None, 0);
    let done = each_row(tensor, 0..tensor.n_rows(), |row| {
        for (part, columns) in parts.iter_mut().zip(row.chunks(width)) {
            part.add_row(columns);
        }
        if row.iter().all(|&x| x == 0.0) {
            n_zero_rows += 1;
            first_zero_row.get_or_insert(index);
        }
        index += 1;
    })?;
    let n_rows = tensor.n_rows() as usize;
    let parts = parts.into_iter().map(|part| part.finish(n_rows)).collect();
    Ok(done.then_some(Survey {
        parts,
        n_zero_rows,
        first_zero_row,
    }))
}

/// Returns the cosine similarity of two tensors of the same shape, over some of their rows; `None` if one
/// cannot be decoded or the shapes differ.
///
/// # Errors
/// The data cannot be read.
pub fn cosine(a: &Tensor, b: &Tensor) -> Result<Option<f64>, SourceError> {
    /// Number of rows that are compared, enough for an estimate.
    const N_ROWS: u64 = 256;
    if a.logical_shape() != b.logical_shape() || a.n_rows() != b.n_rows() {
        return Ok(None);
    }
    let n_rows = a.n_rows();
    let step = n_rows.div_ceil(N_ROWS).max(1);
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for row in (0..n_rows).step_by(step as usize) {
        let mut x = Vec::new();
        let mut both = each_row(a, row..row + 1, |row| x = row.to_vec())?;
        both &= each_row(b, row..row + 1, |y| {
            for (&x, &y) in x.iter().zip(y) {
                let (x, y) = (f64::from(x), f64::from(y));
                ab += x * y;
                aa += x * x;
                bb += y * y;
            }
        })?;
        if !both {
            return Ok(None);
        }
    }
    let cosine = ab / (aa * bb).sqrt();
    Ok(Some(cosine).filter(|c: &f64| c.is_finite()))
}

/// Returns true if a row is all zeros; `None` for a type without a codec.
///
/// # Errors
/// The data cannot be read, or there is no such row.
pub fn is_zero_row(tensor: &Tensor, row: u64) -> Result<Option<bool>, SourceError> {
    let mut is_zero = true;
    let done = each_row(tensor, row..row + 1, |x| {
        is_zero = x.iter().all(|&x| x == 0.0)
    })?;
    Ok(done.then_some(is_zero))
}

/// Decodes rows one by one; returns `false` if there is no codec for the type.
fn each_row(
    tensor: &Tensor,
    rows: std::ops::Range<u64>,
    mut visit: impl FnMut(&[f32]),
) -> Result<bool, SourceError> {
    let Some(codec): Option<Codec> = codec(tensor.dtype) else {
        return Ok(false);
    };
    let row_bytes = tensor.row_bytes();
    let step = (CHUNK_BYTES / row_bytes).clamp(1, tensor.n_rows().max(1));
    let mut bytes = vec![0; (step * row_bytes) as usize];
    let mut x = vec![0.0; tensor.ne0() as usize];
    let mut row = rows.start;
    while row < rows.end {
        let end = (row + step).min(rows.end);
        let bytes = &mut bytes[..((end - row) * row_bytes) as usize];
        tensor.source.read(row..end, bytes)?;
        for bytes in bytes.chunks_exact(row_bytes as usize) {
            codec.dequantize(bytes, &mut x);
            visit(&x);
        }
        row = end;
    }
    Ok(true)
}

/// Adds a row of values to the sums of its columns, and their squares to the sums of squares.
pub fn add_row(values: &[f32], sums: &mut [f64], squares: &mut [f64]) {
    chosen().run_into(AddRow(values), &mut (sums, squares));
}

struct AddRow<'a>(&'a [f32]);

impl KernelInto<(&mut [f64], &mut [f64])> for AddRow<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S, (sums, squares): &mut (&mut [f64], &mut [f64])) {
        for ((&value, sum), square) in self.0.iter().zip(&mut **sums).zip(&mut **squares) {
            let value = f64::from(value);
            *sum += value;
            *square += value * value;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use schemas::gguf::{DType, Owned};

    use super::*;

    fn tensor(dtype: DType, ne0: u64, bytes: Vec<u8>) -> Tensor {
        let row_bytes = dtype.row_bytes(ne0).unwrap();
        let n_rows = bytes.len() as u64 / row_bytes;
        let source = Owned { bytes, row_bytes };
        Tensor::new("t", vec![ne0, n_rows], dtype, Arc::new(source)).unwrap()
    }

    fn floats(ne0: u64, values: &[f32]) -> Tensor {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        tensor(DType::F32, ne0, bytes)
    }

    #[test]
    fn sums_are_of_all_values() {
        let t = floats(2, &[1.0, 3.0, 0.0, -4.0, f32::NAN, 2.0]);
        let survey = survey(&t, 2).unwrap().unwrap();
        let [left, right] = [0, 1].map(|i| survey.parts[i].values);
        assert_eq!((left.n, left.n_zero, left.n_not_finite), (2, 1, 1));
        assert_eq!((right.min, right.max), (-4.0, 3.0));
        assert_eq!(right.mean(), 1.0 / 3.0);
        assert_eq!(right.rms(), (29.0f64 / 3.0).sqrt());
    }

    #[test]
    fn angles_do_not_depend_on_scale() {
        let x = [1.0, 2.0, -3.0, 0.5];
        let a = floats(2, &x);
        let b = floats(2, &x.map(|x| 4.0 * x));
        assert!((cosine(&a, &b).unwrap().unwrap() - 1.0).abs() < 1e-12);
        let c = floats(2, &[2.0, -1.0, 0.5, 3.0]);
        assert_eq!(cosine(&a, &c).unwrap(), Some(0.0));
        assert_eq!(cosine(&a, &floats(4, &x)).unwrap(), None, "another shape");
    }

    /// Long rows are summed in lanes; the result must match a sum value by value.
    #[test]
    fn a_long_row_is_summed_like_its_values() {
        let mut row: Vec<f32> = (0..75).map(|i| (i as f32 - 30.0) * 0.25).collect();
        (row[40], row[3], row[74]) = (f32::INFINITY, 1e-20, 4096.0);
        let mut one_by_one = Values::default();
        row.iter().for_each(|&x| one_by_one.add(x));
        let mut together = Values::default();
        together.add_all(&row);
        let counts = |v: &Values| (v.n, v.n_zero, v.n_not_finite, v.n_implausible);
        assert_eq!(counts(&together), counts(&one_by_one));
        assert_eq!(counts(&together), (74, 1, 1, 2));
        assert_eq!((together.min, together.max), (-7.5, 4096.0));
        assert!((together.mean() - one_by_one.mean()).abs() < 1e-12);
        assert!((together.rms() - one_by_one.rms()).abs() < 1e-9);
    }

    /// Every byte packs two four-bit numbers, so as BF16 the exponents are arbitrary.
    #[test]
    fn packed_nibbles_are_implausible_and_weights_are_not() {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let packed = tensor(DType::BF16, 64, (0..4096).map(|_| random()).collect());
        let defect = survey(&packed, 1).unwrap().unwrap().defect();
        assert!(
            matches!(defect, Some(Defect::Implausible(share)) if share > 0.5),
            "{defect:?}"
        );
        let weights: Vec<f32> = (0..2048)
            .map(|_| f32::from(random()) / 128.0 - 1.0)
            .collect();
        let weights = floats(64, &weights);
        assert_eq!(survey(&weights, 1).unwrap().unwrap().defect(), None);
    }

    #[test]
    fn dead_parts_and_rows_are_found() {
        let of = |values: &[f32], n_parts| survey(&floats(4, values), n_parts).unwrap().unwrap();
        let left_dead = of(&[0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 3.0, -1.0], 2);
        assert_eq!(left_dead.defect(), Some(Defect::ZeroPart(0)));
        let uneven = of(&[0.1, 0.1, 5.0, 5.0, 0.1, -0.1, 5.0, -5.0], 2);
        let (part, ratio) = uneven.quietest_part().unwrap();
        assert!(part == 0 && (ratio - 50.0).abs() < 1e-3, "{ratio}");
        let lost = of(&[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0], 1);
        assert_eq!((lost.n_zero_rows, lost.first_zero_row), (1, Some(1)));
        assert!(of(&[0.5; 8], 1).values().is_constant());
        assert_eq!(of(&[0.0; 8], 1).defect(), Some(Defect::Zero));
    }

    /// Uniform numbers are noise; with a different factor per row they are not.
    #[test]
    fn noise_is_told_from_structure() {
        let mut state = 7u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let noise: Vec<f32> = (0..128 * 96).map(|_| random()).collect();
        let scaled = noise.iter().enumerate();
        let scaled: Vec<f32> = scaled
            .map(|(i, x)| x * (1.0 + (i / 96 % 7) as f32))
            .collect();
        let is_noise = |values: &[f32]| {
            let survey = survey(&floats(96, values), 1).unwrap().unwrap();
            survey.parts[0].is_like_noise()
        };
        assert_eq!(is_noise(&noise), Some(true));
        assert_eq!(is_noise(&scaled), Some(false));
        assert_eq!(is_noise(&noise[..96 * 8]), None, "too few rows");
    }

    #[test]
    fn a_missing_one_is_seen_beside_a_sibling() {
        assert_eq!(norm_offset(0.05, 1.1), Some(NormOffset::Missing));
        assert_eq!(norm_offset(2.1, 1.1), Some(NormOffset::Twice));
        assert_eq!(norm_offset(1.5, 1.1), None);
        assert_eq!(norm_offset(0.05, 5.0), None, "too far for one");
    }
}
