//! Converts a stored tensor to the bytes of a GGUF tensor: decode a row, transform its values, encode it.
//! Each reader holds a few rows in memory, whatever the tensor's size.

use std::f64::consts::TAU;
use std::ops::Range;
use std::sync::Arc;

use kernels::float::{f16_to_f32, f32_to_f16};
use kernels::types::{Codec, codec};
use safetensors::Dtype;
use schemas::arch::{Hparams, Transform};
use schemas::gguf::{
    DType, Extent, FilePosition, FileRange, ReadError, RowError, Source, SourceError,
};

use crate::checkpoint::{Blocks, Scales, StoredTensor};
use crate::decode::Decoder;
use crate::error::Error;
use crate::joined::Joined;
use crate::range::check_range;
use crate::transpose::Transposed;

/// The tensor to create.
pub(crate) struct Target<'a> {
    /// Axes in the file, the contiguous one first.
    pub(crate) shape: &'a [u64],
    /// Element type in the file.
    pub(crate) dtype: DType,
    /// Transforms of its values.
    pub(crate) transform: &'static [Transform],
}

impl Target<'_> {
    /// Returns the rows in the file; the elements of a vector count as rows.
    fn n_rows(&self) -> u64 {
        match self.shape {
            [n] => *n,
            [_, rest @ ..] => rest.iter().product(),
            [] => 1,
        }
    }
}

/// Returns the source of a tensor: the stored bytes themselves if nothing changes.
pub(crate) fn source(
    stored: &StoredTensor,
    target: &Target<'_>,
    hparams: &Hparams,
) -> Result<Arc<dyn Source>, Error> {
    let unsupported = || Error::ElementType {
        path: stored.path(),
        tensor: stored.name.clone(),
        found: stored.dtype,
    };
    if let Some(exponents) = &stored.exponents {
        return Ok(blocks(stored, exponents, target, hparams));
    }
    let decoder = Decoder::of(stored.dtype).ok_or_else(unsupported)?;
    if let Some(source) = transposed(stored, target, hparams)? {
        return Ok(source);
    }
    let n_columns = target.shape[0] as usize;
    let mut changed = Changed {
        stored: stored.clone(),
        decoder,
        n_columns,
        n_stored: n_columns,
        rows: Vec::new(),
        columns: None,
        value: None,
        encoder: codec(target.dtype).expect("every file type has a codec"),
    };
    let n_rows = target.n_rows();
    for &transform in target.transform {
        match Step::new(transform, hparams, n_rows) {
            Step::Nothing => {}
            Step::Value(op) => changed.value = Some(op),
            Step::Columns(order) => {
                changed.n_stored *= order.n_turns();
                changed.columns = Some(order.gather(n_columns));
            }
            // The elements of a vector are rows in the checkpoint and columns in the file.
            Step::Rows(order) if target.shape.len() == 1 => {
                changed.columns = Some(order.gather(n_columns));
            }
            Step::Rows(order) => changed.rows.push(order),
        }
    }
    let unchanged = changed.rows.is_empty()
        && changed.columns.is_none()
        && changed.value.is_none()
        && stored.scales.is_none();
    if unchanged && decoder.dtype() == Some(target.dtype) {
        let row_bytes = (n_columns * decoder.element_bytes()) as u64;
        return Ok(Arc::new(stored.data.with_rows(row_bytes)));
    }
    Ok(Arc::new(changed))
}

/// Returns the source of a tensor with unmodified quantized blocks, in the row order of the file.
fn blocks(
    stored: &StoredTensor,
    exponents: &FileRange,
    target: &Target<'_>,
    hparams: &Hparams,
) -> Arc<dyn Source> {
    let n_rows = target.n_rows();
    let steps = target.transform.iter();
    let orders: Vec<Order> = steps
        .filter_map(|&change| match Step::new(change, hparams, n_rows) {
            Step::Rows(order) => Some(order),
            _ => None,
        })
        .collect();
    Arc::new(Blocks {
        quants: stored.data.clone(),
        exponents: exponents.clone(),
        n_block: (target.shape[0] / Blocks::ELEMENTS) as usize,
        stored_row: move |row| {
            orders
                .iter()
                .rev()
                .fold(row, |row, order| order.source(row))
        },
    })
}

/// Returns the source of a tensor whose last transform is a transposition.
fn transposed(
    stored: &StoredTensor,
    target: &Target<'_>,
    hparams: &Hparams,
) -> Result<Option<Arc<dyn Source>>, Error> {
    let (Some((Transform::Transpose { n_group }, before)), [n_columns, rest @ ..]) =
        (target.transform.split_last(), target.shape)
    else {
        return Ok(None);
    };
    let n_group = n_group(hparams);
    let n_rows = rest.iter().product::<u64>() / n_group;
    let inner = Target {
        shape: &[n_rows, *n_columns, n_group],
        dtype: DType::F32,
        transform: before,
    };
    Ok(Some(Arc::new(Transposed {
        inner: source(stored, &inner, hparams)?,
        n_columns: *n_columns as usize,
        n_rows: n_rows as usize,
        encoder: codec(target.dtype).expect("every file type has a codec"),
    })))
}

/// Returns the source of a tensor that has the columns of all parts, which have this shape.
pub(crate) fn joined(
    parts: &[&StoredTensor],
    shape: &[u64],
    dtype: DType,
    hparams: &Hparams,
) -> Result<Arc<dyn Source>, Error> {
    let each = Target {
        shape,
        dtype: DType::F32,
        transform: &[],
    };
    let parts = parts.iter().map(|stored| source(stored, &each, hparams));
    Ok(Arc::new(Joined {
        parts: parts.collect::<Result<_, _>>()?,
        n_columns: shape[0] as usize,
        encoder: codec(dtype).expect("every file type has a codec"),
    }))
}

/// Stacks tensors of the same shape along an additional axis.
pub(crate) fn stack(parts: Vec<Arc<dyn Source>>, each: &Target<'_>) -> Arc<dyn Source> {
    match <[_; 1]>::try_from(parts) {
        Ok([whole]) => whole,
        Err(parts) => Arc::new(Stack {
            rows_per_part: each.n_rows(),
            parts,
        }),
    }
}

/// Shifts the row in an error of a part to that of the whole tensor.
fn move_row(error: SourceError, first: u64) -> SourceError {
    match error.downcast::<RowError>() {
        Ok(found) => Box::new(RowError {
            row: first + found.row,
            error: found.error,
        }),
        Err(other) => other,
    }
}

struct Stack {
    parts: Vec<Arc<dyn Source>>,
    rows_per_part: u64,
}

impl Source for Stack {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let n_rows = rows.end.saturating_sub(rows.start).max(1);
        let row_bytes = out.len() / n_rows as usize;
        let (mut row, mut out) = (rows.start, out);
        while row < rows.end {
            let start = row % self.rows_per_part;
            let end = self.rows_per_part.min(start + rows.end - row);
            let (part, rest) = out.split_at_mut((end - start) as usize * row_bytes);
            let source = &self.parts[(row / self.rows_per_part) as usize];
            source
                .read(start..end, part)
                .map_err(|error| move_row(error, row - start))?;
            (row, out) = (row + end - start, rest);
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        let part = self.parts.get((row / self.rows_per_part) as usize)?;
        part.input(row % self.rows_per_part)
    }

    fn extents(&self) -> Vec<Extent> {
        self.parts.iter().flat_map(|part| part.extents()).collect()
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.parts
            .iter()
            .try_for_each(|part| part.check_unchanged())
    }
}

/// A change of each value.
#[derive(Clone, Copy)]
enum ValueOp {
    AddOne,
    NegExp,
}

impl ValueOp {
    fn apply(self, x: f32) -> f32 {
        match self {
            ValueOp::AddOne => x + 1.0,
            // Rounded once from double precision, so equal on every machine. The math library of
            // llama.cpp's converter is off by one unit in the last place in one value of a hundred,
            // depending on the CPU.
            ValueOp::NegExp => -(f64::from(x).exp() as f32),
        }
    }
}

/// A transform with its parameters filled in.
enum Step {
    Nothing,
    Value(ValueOp),
    Rows(Order),
    Columns(Order),
}

impl Step {
    /// Returns the step of a transform for a tensor with `n_rows` rows in the checkpoint.
    fn new(transform: Transform, hparams: &Hparams, n_rows: u64) -> Step {
        let tile = |start, width| Order::Tile {
            start,
            width,
            n_key: hparams.ssm.group_count,
            n_value: hparams.ssm.time_step_rank,
        };
        // With one value head per key head, grouped and tiled order are equal.
        let grouped = hparams.ssm.group_count != hparams.ssm.time_step_rank;
        match transform {
            Transform::AddOne => Step::Value(ValueOp::AddOne),
            Transform::NegExp => Step::Value(ValueOp::NegExp),
            Transform::RopePairs { n_head } => Step::Rows(Order::Pairs {
                head_rows: n_rows / n_head(hparams),
            }),
            Transform::TileValueRows { start, width } if grouped => {
                Step::Rows(tile(start(hparams), width(hparams)))
            }
            Transform::TileValueColumns { width } if grouped => {
                Step::Columns(tile(0, width(hparams)))
            }
            Transform::TileValueRows { .. }
            | Transform::TileValueColumns { .. }
            | Transform::Split
            | Transform::Indices { .. } => Step::Nothing,
            Transform::TakeColumns { of, part } => Step::Columns(Order::Turn { of, part }),
            Transform::Transpose { .. } => unreachable!("a transposition is the last transform"),
            Transform::TakeRows {
                n_group,
                widths,
                parts,
            } => {
                let widths: Vec<u64> = widths.iter().map(|width| width(hparams)).collect();
                Step::Rows(Order::Take {
                    n_group: n_group(hparams),
                    group_rows: widths.iter().sum(),
                    parts: parts
                        .iter()
                        .map(|&part| widths[..part].iter().sum()..widths[..=part].iter().sum())
                        .collect(),
                })
            }
        }
    }
}

/// A permutation of rows or columns.
#[derive(Clone)]
enum Order {
    /// See [`Transform::RopePairs`].
    Pairs { head_rows: u64 },
    /// See [`Transform::TileValueRows`].
    Tile {
        start: u64,
        width: u64,
        n_key: u64,
        n_value: u64,
    },
    /// See [`Transform::TakeRows`]; parts are given by their rows in a group.
    Take {
        n_group: u64,
        group_rows: u64,
        parts: Vec<Range<u64>>,
    },
    /// See [`Transform::TakeColumns`].
    Turn { of: u64, part: u64 },
}

impl Order {
    /// Returns the number of elements in the checkpoint per element in the file.
    fn n_turns(&self) -> usize {
        match *self {
            Order::Turn { of, .. } => of as usize,
            _ => 1,
        }
    }

    /// Returns the index in the checkpoint of element `i` of the file.
    fn source(&self, i: u64) -> u64 {
        match *self {
            Order::Turn { of, part } => of * i + part,
            Order::Pairs { head_rows } => {
                let (head, row) = (i / head_rows, i % head_rows);
                head * head_rows + (row % 2) * (head_rows / 2) + row / 2
            }
            Order::Tile { start, .. } if i < start => i,
            Order::Tile {
                start,
                width,
                n_key,
                n_value,
            } => {
                let (head, element) = ((i - start) / width, (i - start) % width);
                let (r, k) = (head / n_key, head % n_key);
                start + (k * (n_value / n_key) + r) * width + element
            }
            Order::Take {
                n_group,
                group_rows,
                ref parts,
            } => {
                let mut i = i;
                for part in parts {
                    let width = part.end - part.start;
                    if i < n_group * width {
                        return i / width * group_rows + part.start + i % width;
                    }
                    i -= n_group * width;
                }
                unreachable!("the parts contain all rows of the file")
            }
        }
    }

    /// Returns [`Order::source`] for every index of a row.
    fn gather(&self, len: usize) -> Box<[u32]> {
        (0..len as u64).map(|i| self.source(i) as u32).collect()
    }
}

/// A tensor whose values, order or type change.
struct Changed {
    stored: StoredTensor,
    decoder: Decoder,
    /// Elements per row in the file.
    n_columns: usize,
    /// Elements per row in the checkpoint.
    n_stored: usize,
    rows: Vec<Order>,
    columns: Option<Box<[u32]>>,
    value: Option<ValueOp>,
    encoder: Codec,
}

/// Bytes that are read at a time, if several rows are contiguous.
const READ_BYTES: usize = 1 << 18;

impl Source for Changed {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        if rows.is_empty() {
            return Ok(());
        }
        let row_bytes = out.len() / (rows.end - rows.start) as usize;
        let stored_bytes = self.stored_row_bytes();
        let mut stored = Vec::new();
        let mut x = vec![0.0; self.n_stored];
        let mut gathered = vec![0.0; self.columns.as_ref().map_or(0, |_| self.n_columns)];
        let mut out = out.chunks_exact_mut(row_bytes);
        let mut row = rows.start;
        while row < rows.end {
            let first = self.stored_row(row);
            let n_max = (READ_BYTES / stored_bytes.max(1)).max(1) as u64;
            let n = self.run_length(row..rows.end.min(row + n_max));
            stored.resize(n as usize * stored_bytes, 0);
            let offset = first * stored_bytes as u64;
            self.stored.data.read_at(offset, &mut stored)?;
            let scales = self.stored.scales.as_ref();
            let scales = scales.map(|scales| scales.read(first, n)).transpose()?;
            for (i, out) in out.by_ref().take(n as usize).enumerate() {
                let bytes = &stored[i * stored_bytes..][..stored_bytes];
                if self.only_moves_rows() {
                    out.copy_from_slice(bytes);
                    continue;
                }
                self.decoder.decode(bytes, &mut x);
                if let Some(scales) = &scales {
                    scales.apply(first + i as u64, &mut x);
                }
                self.change(&mut x);
                let x = match &self.columns {
                    None => &x,
                    Some(columns) => {
                        for (out, &column) in gathered.iter_mut().zip(columns) {
                            *out = x[column as usize];
                        }
                        &gathered
                    }
                };
                let row = row + i as u64;
                check_range(x, row, self.encoder.dtype()).map_err(|error| RowError {
                    row,
                    error: error.into(),
                })?;
                self.encoder.quantize(x, None, out);
            }
            row += n;
        }
        Ok(())
    }

    fn input(&self, row: u64) -> Option<FilePosition<'_>> {
        let offset = self.stored_row(row) * self.stored_row_bytes() as u64;
        Some(self.stored.data.position(offset))
    }

    fn extents(&self) -> Vec<Extent> {
        let scales = self.stored.scales.as_ref().map(Scales::extent);
        [self.stored.data.extent()]
            .into_iter()
            .chain(scales)
            .collect()
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.stored.data.check_unchanged()?;
        let scales = self.stored.scales.as_ref();
        scales.map_or(Ok(()), Scales::check_unchanged)
    }
}

impl Changed {
    /// Returns true if rows are moved, but not modified.
    fn only_moves_rows(&self) -> bool {
        let same_type = self.decoder.dtype() == Some(self.encoder.dtype());
        let same_values = self.value.is_none() && self.stored.scales.is_none();
        same_type && same_values && self.columns.is_none()
    }

    fn stored_row_bytes(&self) -> usize {
        self.n_stored * self.decoder.element_bytes()
    }

    /// Returns the row of the checkpoint for a row of the file.
    fn stored_row(&self, row: u64) -> u64 {
        // The last step determines the file's order, so it is undone first.
        let orders = self.rows.iter().rev();
        orders.fold(row, |row, order| order.source(row))
    }

    /// Returns how many of these rows, at least one, are contiguous in the checkpoint.
    fn run_length(&self, rows: Range<u64>) -> u64 {
        let first = self.stored_row(rows.start);
        let breaks = |n: &u64| self.stored_row(rows.start + n) != first + n;
        let n_rows = rows.end - rows.start;
        (1..n_rows).find(breaks).unwrap_or(n_rows)
    }

    fn change(&self, x: &mut [f32]) {
        let Some(op) = self.value else { return };
        // llama.cpp's converter computes in F16 if the tensor is stored so, else in single precision.
        let half_precision = self.stored.dtype == Dtype::F16;
        for x in x {
            let y = op.apply(*x);
            *x = match half_precision {
                true => f16_to_f32(f32_to_f16(y)),
                false => y,
            };
        }
    }
}

/// Parameters of Llama 3's RoPE scaling.
pub(crate) struct RopeScaling {
    /// RoPE base.
    pub(crate) theta: f64,
    /// Divisor of the lowest frequencies.
    pub(crate) factor: f64,
    /// Rotations within the original context below which a frequency is divided.
    pub(crate) low_freq_factor: f64,
    /// Rotations within the original context above which a frequency is unchanged.
    pub(crate) high_freq_factor: f64,
    /// Length of the original context.
    pub(crate) n_ctx_original: f64,
}

impl RopeScaling {
    /// Returns the divisor of each pair's frequency, `n_rot / 2` numbers, computed in single precision with
    /// the reference's steps.
    pub(crate) fn factors(&self, n_rot: u64) -> Vec<f32> {
        let [factor, low, high, n_ctx] = [
            self.factor,
            self.low_freq_factor,
            self.high_freq_factor,
            self.n_ctx_original,
        ]
        .map(|x| x as f32);
        (0..n_rot / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / n_rot as f32;
                let power = self.theta.powf(f64::from(exponent)) as f32;
                let frequency = 1.0 / power;
                let wavelength = (1.0 / frequency) * TAU as f32;
                if wavelength < n_ctx / high {
                    1.0
                } else if wavelength > n_ctx / low {
                    factor
                } else {
                    let smooth = ((1.0 / wavelength) * n_ctx - low) / (high - low);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_interleave_the_halves_of_each_head() {
        let order = Order::Pairs { head_rows: 6 };
        let places: Vec<_> = (0..12).map(|i| order.source(i)).collect();
        assert_eq!(places, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }

    #[test]
    fn value_heads_are_dealt_out_one_to_each_key_head() {
        let order = Order::Tile {
            start: 1,
            width: 2,
            n_key: 2,
            n_value: 6,
        };
        let places: Vec<_> = (0..13).map(|i| order.source(i)).collect();
        // Heads 0 3 1 4 2 5, two rows each, after one row that stays in place.
        assert_eq!(places, [0, 1, 2, 7, 8, 3, 4, 9, 10, 5, 6, 11, 12]);
    }

    #[test]
    fn orders_move_every_row_once() {
        for (n_key, n_value, width) in [(1, 3, 4), (4, 8, 1), (3, 3, 2), (16, 48, 5)] {
            let order = Order::Tile {
                start: 7,
                width,
                n_key,
                n_value,
            };
            let mut gathered = order.gather(7 + (n_value * width) as usize);
            gathered.sort_unstable();
            assert!(gathered.iter().enumerate().all(|(i, &j)| i == j as usize));
        }
    }

    /// Bit patterns of PyTorch 2.15 for the formula of the Llama 3.1 release.
    #[test]
    fn rope_factors_are_those_of_the_reference() {
        let scaling = RopeScaling {
            theta: 500_000.0,
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            n_ctx_original: 8192.0,
        };
        let factors = scaling.factors(128);
        let (high, rest) = factors.split_at(29);
        let (between, low) = rest.split_at(6);
        assert!(high.iter().all(|&x| x == 1.0), "{high:?}");
        let between: Vec<_> = between.iter().map(|x| x.to_bits()).collect();
        assert_eq!(
            between,
            [
                0x3F9A_8ED5,
                0x3FC6_D64A,
                0x4001_AF1D,
                0x402C_732E,
                0x406B_CACE,
                0x40A8_3C06
            ]
        );
        assert!(low.len() == 29 && low.iter().all(|&x| x == 8.0), "{low:?}");
    }
}
