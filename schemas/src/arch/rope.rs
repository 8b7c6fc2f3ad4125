//! [`RopeScaling`]: RoPE scaling for contexts longer than that of training.

use super::hparams::{HparamsError, Reader};
use super::keys;

/// Llama 3 scaling: frequency divisors, one per rotated pair.
pub const ROPE_FREQS: &str = "rope_freqs.weight";

/// RoPE scaling. Llama 3 scaling is not one of these; it uses [`ROPE_FREQS`].
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Positions are divided by the factor.
    Linear {
        /// `rope.scaling.factor`.
        factor: f32,
    },
    /// Positions of slow pairs are divided by the factor, those of fast pairs are unmodified (YaRN,
    /// arXiv 2309.00071).
    Yarn(Yarn),
    /// An unsupported type, by its name in the file.
    Other(String),
}

/// Parameters of YaRN.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// `rope.scaling.factor`.
    pub factor: f32,
    /// `rope.scaling.original_context_length`, else `context_length`.
    pub n_ctx_original: u64,
    /// `rope.scaling.yarn_ext_factor`: weight of the unscaled frequency for fast pairs.
    pub ext_factor: f32,
    /// `rope.scaling.yarn_attn_factor`: factor on elements with RoPE, if the file has one.
    pub attn_factor: Option<f32>,
    /// `rope.scaling.yarn_beta_fast`: pairs with at least this many rotations over the original
    /// context are fast.
    pub beta_fast: f32,
    /// `rope.scaling.yarn_beta_slow`: pairs with at most this many rotations over the original
    /// context are slow.
    pub beta_slow: f32,
    /// `mscale_all_dim` of DeepSeek's configs, ten times `rope.scaling.yarn_log_multiplier`; 0 if
    /// absent.
    pub log_multiplier: f32,
    /// True if the limits between fast and slow are rounded to whole pairs.
    pub whole_pairs: bool,
}

impl RopeScaling {
    /// Reads the scaling of a file that was trained with `n_ctx_train` positions. Without a type,
    /// it is linear, as in llama.cpp.
    pub(super) fn read(read: &Reader<'_>, n_ctx_train: u64) -> Result<RopeScaling, HparamsError> {
        let kind = read.str(keys::ROPE_SCALING_TYPE)?.unwrap_or("linear");
        let factor = read.positive(keys::ROPE_SCALING_FACTOR)?;
        Ok(match (kind, factor) {
            ("none", _) | ("linear", None) => RopeScaling::None,
            ("linear", Some(factor)) => RopeScaling::Linear { factor },
            ("yarn", factor) => RopeScaling::Yarn(Yarn {
                factor: factor.unwrap_or(1.0),
                n_ctx_original: match read.optional(keys::ROPE_SCALING_ORIGINAL_CONTEXT, 0)? {
                    0 => n_ctx_train,
                    n_ctx => n_ctx,
                },
                ext_factor: read.positive(keys::YARN_EXT_FACTOR)?.unwrap_or(1.0),
                attn_factor: read.positive(keys::YARN_ATTN_FACTOR)?,
                beta_fast: read.positive(keys::YARN_BETA_FAST)?.unwrap_or(32.0),
                beta_slow: read.positive(keys::YARN_BETA_SLOW)?.unwrap_or(1.0),
                log_multiplier: 10.0 * read.positive(keys::YARN_LOG_MULTIPLIER)?.unwrap_or(0.0),
                whole_pairs: read.arch.yarn_whole_pairs,
            }),
            (other, _) => RopeScaling::Other(other.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Hparams;
    use crate::gguf::{Metadata, Value};

    /// Reads the scaling of a file with these keys.
    fn read(keys: &[(&str, Value)]) -> Result<RopeScaling, String> {
        let mut metadata = Metadata::new();
        metadata.set(keys::ARCHITECTURE, "qwen2");
        for (key, value) in [
            (keys::BLOCK_COUNT, 2),
            (keys::CONTEXT_LENGTH, 512),
            (keys::EMBEDDING_LENGTH, 64),
            (keys::FEED_FORWARD_LENGTH, 96),
            (keys::HEAD_COUNT, 4),
            (keys::VOCAB_SIZE, 10),
        ] {
            metadata.set(format!("qwen2.{key}"), Value::U32(value));
        }
        metadata.set(format!("qwen2.{}", keys::RMS_EPSILON), Value::F32(1e-6));
        for (key, value) in keys {
            metadata.set(format!("qwen2.{key}"), value.clone());
        }
        let hparams = Hparams::from_metadata(&metadata);
        hparams.map(|h| h.rope_scaling).map_err(|e| e.to_string())
    }

    #[test]
    fn a_factor_alone_is_linear() {
        let factor = |x| (keys::ROPE_SCALING_FACTOR, Value::F32(x));
        assert_eq!(read(&[]), Ok(RopeScaling::None));
        assert_eq!(read(&[factor(0.0)]), Ok(RopeScaling::None));
        let linear = RopeScaling::Linear { factor: 4.0 };
        assert_eq!(read(&[factor(4.0)]), Ok(linear));
        for x in [-4.0, f32::NAN, f32::INFINITY] {
            let message = format!("key qwen2.rope.scaling.factor: {x}, expected a positive number");
            assert_eq!(read(&[factor(x)]), Err(message));
        }
    }

    #[test]
    fn yarn_has_defaults() {
        let kind = |name: &str| (keys::ROPE_SCALING_TYPE, Value::from(name));
        let yarn = Yarn {
            factor: 4.0,
            n_ctx_original: 512,
            ext_factor: 1.0,
            attn_factor: None,
            beta_fast: 32.0,
            beta_slow: 1.0,
            log_multiplier: 0.0,
            whole_pairs: true,
        };
        let factor = (keys::ROPE_SCALING_FACTOR, Value::F32(4.0));
        let read_yarn = |more: &[(&str, Value)]| {
            let mut all = vec![kind("yarn"), factor.clone()];
            all.extend_from_slice(more);
            read(&all)
        };
        assert_eq!(read_yarn(&[]), Ok(RopeScaling::Yarn(yarn.clone())));
        let given = Yarn {
            n_ctx_original: 64,
            attn_factor: Some(1.5),
            beta_fast: 16.0,
            ..yarn
        };
        assert_eq!(
            read_yarn(&[
                (keys::ROPE_SCALING_ORIGINAL_CONTEXT, Value::U32(64)),
                (keys::YARN_ATTN_FACTOR, Value::F32(1.5)),
                (keys::YARN_BETA_FAST, Value::F32(16.0)),
            ]),
            Ok(RopeScaling::Yarn(given))
        );
        let message = "key qwen2.rope.scaling.yarn_beta_slow: -1, expected a positive number";
        let slow = [(keys::YARN_BETA_SLOW, Value::F32(-1.0))];
        assert_eq!(read_yarn(&slow), Err(message.to_owned()));
        let other = RopeScaling::Other("longrope".to_owned());
        assert_eq!(read(&[kind("longrope")]), Ok(other));
    }
}
