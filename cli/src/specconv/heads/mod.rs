//! Commands for MTP heads.

pub(super) mod graft;
mod head_types;
pub(super) mod repair;
pub(super) mod requantize;
pub(super) mod split;

use std::str::FromStr;

use anyhow::bail;
use quantize::parse_type;
use schemas::gguf::DType;

/// Type flags of a head's tensors.
#[derive(Debug, clap::Args)]
pub(super) struct HeadArgs {
    /// Type of the head's weights: keep, or a type such as q8_0
    ///
    /// eh_proj is stored with at least the bits of Q8_0
    #[arg(long, value_name = "keep|TYPE", default_value = "keep")]
    mtp_type: HeadType,
    /// Allow converting weights that are already quantized
    ///
    /// Loses more precision than quantizing from 16 or 32 bits
    #[arg(long)]
    allow_requantize: bool,
}

/// The requested type of a head's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadType {
    Keep,
    To(DType),
}

impl FromStr for HeadType {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<HeadType> {
        if text.eq_ignore_ascii_case("keep") {
            return Ok(HeadType::Keep);
        }
        Ok(HeadType::To(parse_type(text)?))
    }
}

/// The embedding and output that a head uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadEmbeddings {
    /// The embedding and output of the model.
    Share,
    /// Own copies, converted to the type if one is given.
    Own(Option<DType>),
}

impl FromStr for HeadEmbeddings {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<HeadEmbeddings> {
        match text.split_once(':') {
            None if text == "share" => Ok(HeadEmbeddings::Share),
            None if text == "own" => Ok(HeadEmbeddings::Own(None)),
            Some(("own", dtype)) => Ok(HeadEmbeddings::Own(Some(parse_type(dtype)?))),
            _ => bail!("{text:?}: expected share, own or own:TYPE"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_values_are_parsed() {
        assert_eq!("keep".parse::<HeadType>().unwrap(), HeadType::Keep);
        let q4_k = HeadType::To(DType::Q4_K);
        assert_eq!("q4_K".parse::<HeadType>().unwrap(), q4_k);
        let own = HeadEmbeddings::Own(Some(DType::Q8_0));
        assert_eq!("own:q8_0".parse::<HeadEmbeddings>().unwrap(), own);
        let error = "owned".parse::<HeadEmbeddings>().unwrap_err().to_string();
        assert_eq!(error, "\"owned\": expected share, own or own:TYPE");
    }
}
