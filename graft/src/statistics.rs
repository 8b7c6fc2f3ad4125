//! How a tensor's values are spread, read row by row: memory is one stretch of rows, whatever the
//! tensor's size.

use kernels::quant::{QuantType, quant_type};
use schemas::gguf::{SourceError, Tensor};
use schemas::report::ValuesReport;

/// Bytes that are read at a time; a longer row is read alone.
const CHUNK_BYTES: u64 = 1 << 20;

/// Exponents of weights. Bytes of packed numbers, taken for floats, have any exponent.
const SMALLEST: f32 = 1.0 / (1u64 << 40) as f32;
const LARGEST: f32 = 1024.0;

/// Sums over values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Values {
    n: u64,
    sum: f64,
    squares: f64,
    min: f32,
    max: f32,
    n_zero: u64,
    n_not_finite: u64,
    n_wild: u64,
}

impl Values {
    /// Adds a row. Sums go by lanes, which the compiler makes vectors of.
    fn add_all(&mut self, row: &[f32]) {
        let (blocks, rest) = row.as_chunks::<{ Lanes::N }>();
        let mut lanes = Lanes::default();
        for block in blocks {
            match block.iter().fold(true, |all, x| all & x.is_finite()) {
                true => lanes.add(block),
                false => block.iter().for_each(|&x| self.add(x)),
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
        self.n += 1;
        self.sum += f64::from(x);
        self.squares += f64::from(x) * f64::from(x);
        self.min = self.min.min(x);
        self.max = self.max.max(x);
        self.n_zero += u64::from(x == 0.0);
        self.n_wild += u64::from(x != 0.0 && !(SMALLEST..=LARGEST).contains(&x.abs()));
    }

    /// Both of two sets.
    pub(crate) fn and(&self, other: &Values) -> Values {
        if self.n == 0 || other.n == 0 {
            let (some, none) = if self.n == 0 {
                (other, self)
            } else {
                (self, other)
            };
            let n_not_finite = some.n_not_finite + none.n_not_finite;
            return Values {
                n_not_finite,
                ..*some
            };
        }
        Values {
            n: self.n + other.n,
            sum: self.sum + other.sum,
            squares: self.squares + other.squares,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            n_zero: self.n_zero + other.n_zero,
            n_not_finite: self.n_not_finite + other.n_not_finite,
            n_wild: self.n_wild + other.n_wild,
        }
    }

    pub(crate) fn rms(&self) -> f64 {
        (self.squares / self.n.max(1) as f64).sqrt()
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.n.max(1) as f64
    }

    /// Whether there is nothing but zeros.
    pub(crate) fn is_zero(&self) -> bool {
        self.n_zero == self.n && self.n_not_finite == 0
    }

    pub(crate) fn n_not_finite(&self) -> u64 {
        self.n_not_finite
    }

    /// Share of the values that no weight has.
    pub(crate) fn wild_share(&self) -> f64 {
        let n = self.n + self.n_not_finite;
        (self.n_wild + self.n_not_finite) as f64 / n.max(1) as f64
    }

    pub(crate) fn report(&self) -> ValuesReport {
        ValuesReport {
            mean: self.mean(),
            rms: self.rms(),
            min: self.min.into(),
            max: self.max.into(),
            n_zero: self.n_zero,
            n_not_finite: self.n_not_finite,
            n_wild: self.n_wild,
        }
    }
}

/// Sums over the finite values of a row, one behind the other for each lane.
struct Lanes {
    n: u64,
    sum: [f64; Lanes::N],
    squares: [f64; Lanes::N],
    min: [f32; Lanes::N],
    max: [f32; Lanes::N],
    n_zero: [u32; Lanes::N],
    n_wild: [u32; Lanes::N],
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            n: 0,
            sum: [0.0; Lanes::N],
            squares: [0.0; Lanes::N],
            min: [f32::INFINITY; Lanes::N],
            max: [f32::NEG_INFINITY; Lanes::N],
            n_zero: [0; Lanes::N],
            n_wild: [0; Lanes::N],
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
            self.min[i] = if x < self.min[i] { x } else { self.min[i] };
            self.max[i] = if x > self.max[i] { x } else { self.max[i] };
            self.n_zero[i] += u32::from(x == 0.0);
            self.n_wild[i] += u32::from((x != 0.0) & !(SMALLEST..=LARGEST).contains(&magnitude));
        }
    }

    fn values(&self) -> Values {
        let count = |lanes: &[u32]| lanes.iter().map(|&n| u64::from(n)).sum();
        Values {
            n: self.n,
            sum: self.sum.iter().sum(),
            squares: self.squares.iter().sum(),
            min: self.min.iter().fold(f32::INFINITY, |a, &b| a.min(b)),
            max: self.max.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b)),
            n_zero: count(&self.n_zero),
            n_not_finite: 0,
            n_wild: count(&self.n_wild),
        }
    }
}

/// The values of a tensor, those left of `column` in each row apart from the others; `None` for
/// a type without a codec.
pub(crate) fn halves(tensor: &Tensor, column: usize) -> Result<Option<[Values; 2]>, SourceError> {
    let mut halves = [Values::default(); 2];
    let done = each_row(tensor, 0..tensor.n_rows(), |row| {
        let (left, right) = row.split_at(column.min(row.len()));
        halves[0].add_all(left);
        halves[1].add_all(right);
    })?;
    Ok(done.then_some(halves))
}

/// The values of a tensor; `None` for a type without a codec.
pub(crate) fn values(tensor: &Tensor) -> Result<Option<Values>, SourceError> {
    Ok(halves(tensor, usize::MAX)?.map(|[all, _]| all))
}

/// The cosine of the angle between two tensors of one shape, over some rows of each; `None` where
/// one cannot be decoded or has another shape.
pub(crate) fn cosine(a: &Tensor, b: &Tensor) -> Result<Option<f64>, SourceError> {
    /// Rows that are looked at: enough for an angle, few enough for any embedding.
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

/// Decodes rows one by one; `false` where there is no codec for the type.
fn each_row(
    tensor: &Tensor,
    rows: std::ops::Range<u64>,
    mut visit: impl FnMut(&[f32]),
) -> Result<bool, SourceError> {
    let Some(codec): Option<&dyn QuantType> = quant_type(tensor.dtype) else {
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
        let [left, right] = halves(&t, 1).unwrap().unwrap();
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

    /// Long rows go by lanes; what they add up to is what their values add up to one by one.
    #[test]
    fn a_long_row_is_summed_like_its_values() {
        let mut row: Vec<f32> = (0..75).map(|i| (i as f32 - 30.0) * 0.25).collect();
        (row[40], row[3], row[74]) = (f32::INFINITY, 1e-20, 4096.0);
        let mut one_by_one = Values::default();
        row.iter().for_each(|&x| one_by_one.add(x));
        let mut together = Values::default();
        together.add_all(&row);
        let counts = |v: &Values| (v.n, v.n_zero, v.n_not_finite, v.n_wild);
        assert_eq!(counts(&together), counts(&one_by_one));
        assert_eq!(counts(&together), (74, 1, 1, 2));
        assert_eq!((together.min, together.max), (-7.5, 4096.0));
        assert!((together.mean() - one_by_one.mean()).abs() < 1e-12);
        assert!((together.rms() - one_by_one.rms()).abs() < 1e-9);
    }

    /// Every byte is two numbers of four bits: as BF16 the exponents are all over the place.
    #[test]
    fn packed_nibbles_are_wild_and_weights_are_not() {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let packed = tensor(DType::BF16, 64, (0..4096).map(|_| random()).collect());
        let share = values(&packed).unwrap().unwrap().wild_share();
        assert!(share > 0.5, "{share}");
        let weights: Vec<f32> = (0..2048)
            .map(|_| f32::from(random()) / 128.0 - 1.0)
            .collect();
        let weights = floats(64, &weights);
        assert_eq!(values(&weights).unwrap().unwrap().wild_share(), 0.0);
    }
}
