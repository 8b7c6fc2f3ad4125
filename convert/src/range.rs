//! Checks that weights are in the range of an element type.

use schemas::gguf::DType;

/// A weight beyond the range of the element type.
#[derive(Debug, thiserror::Error)]
#[error("row {row}, column {column}: {value} does not fit in {dtype}; {advice}")]
pub(crate) struct OutOfRange {
    row: u64,
    column: usize,
    value: f32,
    dtype: DType,
    advice: &'static str,
}

/// Rejects weights that would silently become infinite, or that a block of integers cannot hold; infinities
/// and NaNs of the checkpoint itself are kept in floating-point types.
pub(crate) fn check_range(x: &[f32], row: u64, dtype: DType) -> Result<(), OutOfRange> {
    // The smallest magnitude that rounds to infinity, in the type or in its block scale.
    const F16_LIMIT: f32 = 65_520.0;
    let (limit, floats) = match dtype {
        DType::F16 => (F16_LIMIT, true),
        DType::BF16 => (f32::from_bits(0x7F7F_8000), true),
        DType::Q8_0 => (127.0 * F16_LIMIT, false),
        _ => return Ok(()),
    };
    let fits = |x: f32| x.abs() < limit || (floats && !x.is_finite());
    // A loop without an early exit is vectorised.
    if x.iter().fold(true, |all, &x| all & (x.abs() < limit)) {
        return Ok(());
    }
    let Some(column) = x.iter().position(|&x| !fits(x)) else {
        return Ok(());
    };
    Err(OutOfRange {
        row,
        column,
        value: x[column],
        dtype,
        advice: match x[column].is_finite() {
            true => "use type bf16 or f32",
            false => "the checkpoint is broken",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_edits_are_rejected() {
        let message = |x: f32, dtype| {
            check_range(&[0.0, x], 3, dtype)
                .err()
                .map(|error| error.to_string())
        };
        for (x, dtype) in [
            (65_519.0, DType::F16),
            (f32::INFINITY, DType::F16),
            (f32::NAN, DType::BF16),
            (f32::MAX, DType::F32),
            (8e6, DType::Q8_0),
        ] {
            assert_eq!(message(x, dtype), None, "{x} in {dtype}");
        }
        assert_eq!(
            message(-65_520.0, DType::F16).as_deref(),
            Some("row 3, column 1: -65520 does not fit in F16; use type bf16 or f32")
        );
        assert_eq!(
            message(f32::NAN, DType::Q8_0).as_deref(),
            Some("row 3, column 1: NaN does not fit in Q8_0; the checkpoint is broken")
        );
        assert!(message(f32::MAX, DType::BF16).is_some());
        assert!(message(9e6, DType::Q8_0).is_some());
    }
}
