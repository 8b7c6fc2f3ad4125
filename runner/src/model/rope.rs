//! RoPE parameters: a frequency for each pair and one magnitude, computed at load from the scaling
//! that the file declares.

use std::f32::consts::TAU;

use kernels::backend::{Rope, RopeLayout};
use schemas::arch::{Hparams, RopeScaling, Yarn};

use crate::error::ModelError;
use crate::rope_positions::N_AXES;

/// Returns the RoPE of heads of `head_dim` elements; `freq_factors` divide the frequencies, one per
/// pair.
///
/// # Errors
/// The kind of position scaling is not supported.
pub(super) fn rope(
    hparams: &Hparams,
    layout: RopeLayout,
    head_dim: usize,
    freq_factors: Option<&[f32]>,
) -> Result<Rope, ModelError> {
    let (n_rot, base) = (hparams.n_rot, hparams.rope_freq_base);
    let frequencies = frequencies(base, n_rot).enumerate().map(|(i, frequency)| {
        let factor = freq_factors.map_or(1.0, |factors| factors[i]);
        frequency / factor
    });
    let (inv_freq, magnitude) = match &hparams.rope_scaling {
        RopeScaling::None => (frequencies.collect(), 1.0),
        RopeScaling::Linear { factor } => (frequencies.map(|x| x / factor).collect(), 1.0),
        RopeScaling::Yarn(yarn) => {
            let limits = Limits::of(yarn, n_rot, base);
            (limits.stretch(yarn, frequencies), magnitude(yarn))
        }
        RopeScaling::Other(kind) => {
            return Err(ModelError::RopeScaling { kind: kind.clone() });
        }
    };
    Ok(Rope {
        layout,
        head_dim,
        first: 0,
        inv_freq,
        magnitude,
    })
}

/// Returns the RoPE of each coordinate of a position. A pair is rotated by one of them: by that of its
/// remainder modulo 3, if the section of the coordinate is long enough, else by the first. The others leave it
/// unchanged.
pub(super) fn sections_of(rope: &Rope, counts: [u64; N_AXES]) -> [Rope; N_AXES] {
    let axis_of = |pair: usize| match pair % N_AXES {
        axis if (pair as u64) < N_AXES as u64 * counts[axis] => axis,
        _ => 0,
    };
    std::array::from_fn(|axis| {
        let pairs = rope.inv_freq.iter().enumerate();
        let of_axis = pairs.map(|(pair, &inv_freq)| match axis_of(pair) == axis {
            true => inv_freq,
            false => 0.0,
        });
        Rope {
            inv_freq: of_axis.collect(),
            // The factor is applied once.
            magnitude: if axis == 0 { rope.magnitude } else { 1.0 },
            ..rope.clone()
        }
    })
}

/// Returns the angle per position of each pair, without scaling.
pub(super) fn frequencies(base: f32, n_rot: u64) -> impl Iterator<Item = f32> {
    (0..n_rot / 2).map(move |i| base.powf(-(2.0 * i as f32) / n_rot as f32))
}

/// The range of pairs in which YaRN ramps from unscaled (fast) to scaled (slow) frequencies.
struct Limits {
    first: f32,
    last: f32,
}

impl Limits {
    fn of(yarn: &Yarn, n_rot: u64, base: f32) -> Limits {
        // The pair, as a real number, that makes this many turns over the original context.
        let pair = |turns: f32| {
            let wavelengths = yarn.n_ctx_original as f32 / (turns * TAU);
            n_rot as f32 * wavelengths.ln() / (2.0 * base.ln())
        };
        let (first, last) = (pair(yarn.beta_fast), pair(yarn.beta_slow));
        let (first, last) = match yarn.whole_pairs {
            true => (first.floor(), last.ceil()),
            false => (first, last),
        };
        Limits {
            first: first.max(0.0),
            last: last.min(n_rot as f32 - 1.0),
        }
    }

    /// Divides frequencies by the factor, except for fast pairs.
    fn stretch(&self, yarn: &Yarn, frequencies: impl Iterator<Item = f32>) -> Vec<f32> {
        let stretched = frequencies.enumerate().map(|(pair, frequency)| {
            let kept = self.fast(pair) * yarn.ext_factor;
            frequency / yarn.factor * (1.0 - kept) + frequency * kept
        });
        stretched.collect()
    }

    /// Returns the share of the unscaled frequency of a pair: 1 up to the first limit, 0 from the
    /// last on.
    fn fast(&self, pair: usize) -> f32 {
        const SMALLEST_WIDTH: f32 = 1e-3;
        let width = (self.last - self.first).max(SMALLEST_WIDTH);
        1.0 - ((pair as f32 - self.first) / width).clamp(0.0, 1.0)
    }
}

/// Returns the factor that compensates the effect of scaled positions on attention scores: `0.1 m
/// ln(factor) + 1`.
pub(super) fn mscale(factor: f32, m: f32) -> f32 {
    match factor > 1.0 {
        true => 0.1 * m * factor.ln() + 1.0,
        false => 1.0,
    }
}

/// Returns the factor on rotated elements. Models with `mscale_all_dim` scale the attention scores
/// instead; their `mscale` is the same, so the quotient of both is 1.
fn magnitude(yarn: &Yarn) -> f32 {
    let computed = match yarn.log_multiplier {
        0.0 => mscale(yarn.factor, 1.0),
        _ => 1.0,
    };
    yarn.attn_factor.unwrap_or(computed)
}

#[cfg(test)]
mod tests {
    use kernels::backend::{Backend, RopeOp};
    use kernels::cpu::{Cpu, CpuConfig};

    use super::*;
    use crate::memory::Memory;

    const YARN: Yarn = Yarn {
        factor: 4.0,
        n_ctx_original: 64,
        ext_factor: 1.0,
        attn_factor: None,
        beta_fast: 32.0,
        beta_slow: 1.0,
        log_multiplier: 0.0,
        whole_pairs: true,
    };

    /// The pairs of each coordinate are those that transformers and llama.cpp give the interleaved sections of
    /// Qwen3.5.
    #[test]
    fn pairs_of_sections_are_interleaved() {
        let rope = Rope {
            layout: RopeLayout::Neox,
            head_dim: 64,
            first: 0,
            inv_freq: (1..=8).map(|pair| pair as f32).collect(),
            magnitude: 2.0,
        };
        let [time, height, width] = sections_of(&rope, [3, 3, 2]);
        assert_eq!(time.inv_freq, [1.0, 0.0, 0.0, 4.0, 0.0, 0.0, 7.0, 0.0]);
        assert_eq!(height.inv_freq, [0.0, 2.0, 0.0, 0.0, 5.0, 0.0, 0.0, 8.0]);
        assert_eq!(width.inv_freq, [0.0, 0.0, 3.0, 0.0, 0.0, 6.0, 0.0, 0.0]);
        assert_eq!(
            [time.magnitude, height.magnitude, width.magnitude],
            [2.0, 1.0, 1.0]
        );
        // Pairs after the end of their section have the first coordinate.
        let [time, height, width] = sections_of(&rope, [6, 1, 1]);
        assert_eq!(time.inv_freq, [1.0, 0.0, 0.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(height.inv_freq[1], 2.0);
        assert_eq!(width.inv_freq[2], 3.0);
    }

    /// Rotations by sections are those of a formula in `f64`, in which every pair has the coordinate that
    /// transformers gives it: the height replaces the time in every third pair from the second on, the width in
    /// every third from the third on, each up to three times the length of its section.
    #[test]
    fn sections_rotate_by_their_coordinate() {
        const N_PAIR: usize = 8;
        const N_HEAD: usize = 2;
        let rope = Rope {
            layout: RopeLayout::Neox,
            head_dim: 2 * N_PAIR + 4,
            first: 0,
            inv_freq: frequencies(10_000.0, 2 * N_PAIR as u64).collect(),
            magnitude: 1.25,
        };
        let axes = [vec![5, 5, 40], vec![7, 9, 40], vec![6, 11, 40]];
        let counts = [3u64, 3, 2];
        let mut axis_of = [0; N_PAIR];
        for axis in [1, 2] {
            for pair in (axis..3 * counts[axis] as usize).step_by(3) {
                axis_of[pair] = axis;
            }
        }
        let n = 3 * N_HEAD * rope.head_dim;
        let values: Vec<f32> = (0..n)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0)
            .collect();
        let config = CpuConfig {
            threads: 1,
            ..CpuConfig::default()
        };
        let cpu = Cpu::new(config).unwrap();
        let mut x = Memory::scratch(&cpu, n);
        cpu.upload(&values, &mut x, 0);
        for (rope, positions) in sections_of(&rope, counts).iter().zip(&axes) {
            cpu.rope(&mut x, rope, N_HEAD, positions);
        }
        let mut found = vec![0.0; n];
        cpu.download(&x, 0, &mut found);
        for (i, head) in values.chunks_exact(rope.head_dim).enumerate() {
            let row = i / N_HEAD;
            for (pair, &inv_freq) in rope.inv_freq.iter().enumerate() {
                let angle = f64::from(axes[axis_of[pair]][row]) * f64::from(inv_freq);
                let (sin, cos) = (1.25 * angle.sin(), 1.25 * angle.cos());
                let [a, b] = [head[pair], head[pair + N_PAIR]].map(f64::from);
                let at = i * rope.head_dim + pair;
                let expected = [a * cos - b * sin, a * sin + b * cos];
                for (found, expected) in [found[at], found[at + N_PAIR]].iter().zip(expected) {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error < 1e-5, "row {row}, pair {pair}: {found} {expected}");
                }
            }
            let rest = i * rope.head_dim + 2 * N_PAIR;
            for (found, value) in found[rest..rest + 4].iter().zip(&head[2 * N_PAIR..]) {
                assert!(
                    (found - value).abs() == 0.0,
                    "elements without RoPE are unchanged"
                );
            }
        }
    }

    /// Expected frequencies and magnitudes come from transformers 5.23 (`tests/reference/rope.py
    /// tables`).
    #[test]
    fn yarn_is_that_of_transformers() {
        let long = Yarn {
            factor: 32.0,
            n_ctx_original: 4096,
            whole_pairs: false,
            ..YARN
        };
        let settings = Yarn {
            factor: 40.0,
            n_ctx_original: 4096,
            beta_fast: 16.0,
            beta_slow: 2.0,
            attn_factor: Some(1.25),
            ..YARN
        };
        for (yarn, base, expected_magnitude, expected) in [
            (
                YARN,
                1e4_f32,
                1.138_629_4,
                [
                    1.0,
                    0.477_990_12,
                    0.221_359_43,
                    0.097_805_366,
                    0.04,
                    0.014_058_532,
                    0.007_905_695,
                    0.004_445_698_6,
                    0.0025,
                    0.001_405_853_3,
                    0.000_790_569_5,
                    0.000_444_569_86,
                    0.000_25,
                    0.000_140_585_33,
                    7.905_695e-5,
                    4.445_698_5e-5,
                ],
            ),
            (
                long,
                150_000.0,
                1.346_573_6,
                [
                    1.0,
                    0.474_782_05,
                    0.225_418,
                    0.107_024_42,
                    0.050_813_273,
                    0.019_335_002,
                    0.006_794_959_3,
                    0.002_093_792_7,
                    0.000_456_483_92,
                    3.830_881e-5,
                    1.818_833_7e-5,
                    8.635_496e-6,
                    4.099_978_5e-6,
                    1.946_596_3e-6,
                    9.242_09e-7,
                    4.387_978_5e-7,
                ],
            ),
            (
                settings,
                1e4,
                1.25,
                [
                    1.0,
                    0.562_341_33,
                    0.316_227_76,
                    0.177_827_94,
                    0.1,
                    0.056_234_13,
                    0.031_622_78,
                    0.014_315_15,
                    0.0061,
                    0.002_333_716_5,
                    0.000_695_701_05,
                    4.445_698_5e-5,
                    2.5e-5,
                    1.405_853_3e-5,
                    7.905_694_5e-6,
                    4.445_698_3e-6,
                ],
            ),
        ] {
            let frequencies = (0..16).map(|i| base.powf(-(i as f32) / 16.0));
            let found = Limits::of(&yarn, 32, base).stretch(&yarn, frequencies);
            for (pair, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                let off = (found / expected - 1.0).abs();
                assert!(off < 1e-5, "{yarn:?}, pair {pair}: {found} {expected}");
            }
            assert!(
                (magnitude(&yarn) - expected_magnitude).abs() < 1e-6,
                "{yarn:?}"
            );
        }
    }
}
