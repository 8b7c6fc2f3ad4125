//! The vocabulary map: a translation of a target's tokens to tokens of a draft model with another
//! tokenizer, and back. It is stored in its own GGUF file.

use std::sync::Arc;

use super::tokens_sha256;
use crate::arch::keys;
use crate::gguf::{DType, KeyError, Metadata, Owned, Plan, SourceError, Strings, Tensor};

/// `general.architecture` of a map.
pub const ARCHITECTURE: &str = "specconv-vocab-map";
/// Key: [`tokens_sha256`] of the target's tokens.
pub const TARGET_TOKENS_SHA256: &str = "specconv.vocab_map.target_tokens_sha256";
/// Key: [`tokens_sha256`] of the draft model's tokens.
pub const DRAFT_TOKENS_SHA256: &str = "specconv.vocab_map.draft_tokens_sha256";
/// Key: number of the target's tokens, u32.
pub const TARGET_SIZE: &str = "specconv.vocab_map.target_size";
/// Key: number of the draft model's tokens, u32.
pub const DRAFT_SIZE: &str = "specconv.vocab_map.draft_size";
/// Tensor, I64 `{target_size + 1}`: start of each target token's sequence in [`TARGET_IDS`].
pub const TARGET_OFFSETS: &str = "target_to_draft.offsets";
/// Tensor, I64: concatenated sequences of draft tokens.
pub const TARGET_IDS: &str = "target_to_draft.ids";
/// Tensor, I64 `{draft_size + 1}`: start of each draft token's sequence in [`DRAFT_IDS`].
pub const DRAFT_OFFSETS: &str = "draft_to_target.offsets";
/// Tensor, I64: concatenated sequences of target tokens.
pub const DRAFT_IDS: &str = "draft_to_target.ids";

/// Maximum average length of a translation in tokens. A token is a few bytes, and at worst every
/// byte is translated to one token.
const MAX_MEAN_LEN: u64 = 256;
/// Maximum number of tokens of a vocabulary.
const MAX_TOKENS: u64 = 1 << 24;

/// One vocabulary of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Number of tokens.
    pub n_tokens: u32,
    /// [`tokens_sha256`] of the tokens.
    pub sha256: String,
}

impl Vocabulary {
    /// Describes the vocabulary with these tokens.
    pub fn of(tokens: &Strings) -> Vocabulary {
        Vocabulary {
            n_tokens: tokens.len() as u32,
            sha256: tokens_sha256(tokens),
        }
    }
}

/// For each token a sequence of the other vocabulary's tokens; empty if it has no translation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// Start of each sequence in `ids`, and the end of the last one.
    offsets: Vec<u32>,
    ids: Vec<u32>,
}

impl Translation {
    /// Creates a translation from the sequences of tokens 0, 1, and so on.
    pub fn new(sequences: impl IntoIterator<Item = Vec<u32>>) -> Translation {
        let mut translation = Translation {
            offsets: vec![0],
            ids: Vec::new(),
        };
        for sequence in sequences {
            translation.ids.extend(sequence);
            translation.offsets.push(translation.ids.len() as u32);
        }
        translation
    }

    /// Returns the translation of a token; empty if it has none or does not exist.
    pub fn of(&self, token: u32) -> &[u32] {
        let i = token as usize;
        match (self.offsets.get(i), self.offsets.get(i + 1)) {
            (Some(&start), Some(&end)) => &self.ids[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Returns the number of source tokens, including those without a translation.
    pub fn n_tokens(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }
}

/// Both translations between two vocabularies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocabMap {
    /// The target's vocabulary.
    pub target: Vocabulary,
    /// The draft model's vocabulary.
    pub draft: Vocabulary,
    /// From the target's tokens to the draft model's.
    pub target_to_draft: Translation,
    /// From the draft model's tokens to the target's.
    pub draft_to_target: Translation,
}

/// Error of a vocabulary map.
#[derive(Debug, thiserror::Error)]
pub enum VocabMapError {
    /// A key is missing or mistyped.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// The file is of another kind.
    #[error("key general.architecture: expected {ARCHITECTURE}, found {found}")]
    Architecture {
        /// Its architecture.
        found: String,
    },
    /// A vocabulary is empty or too large.
    #[error("key {key}: {found} tokens, expected 1 to {MAX_TOKENS}")]
    Size {
        /// The key.
        key: &'static str,
        /// Number of tokens.
        found: u32,
    },
    /// A tensor is missing.
    #[error("tensor {tensor} is missing")]
    Missing {
        /// The name.
        tensor: &'static str,
    },
    /// A tensor has another type or size.
    #[error("tensor {tensor}: {found}, expected I64 of {expected}")]
    Layout {
        /// The name.
        tensor: &'static str,
        /// Type and shape.
        found: String,
        /// Expected number of elements.
        expected: String,
    },
    /// An element is out of range.
    #[error("tensor {tensor}: element {index} is {found}, expected {expected}")]
    Element {
        /// The name.
        tensor: &'static str,
        /// Index of the element.
        index: usize,
        /// Its value.
        found: i64,
        /// The allowed range.
        expected: String,
    },
    /// The data cannot be read.
    #[error("tensor {tensor}: {source}")]
    Read {
        /// The name.
        tensor: &'static str,
        /// The cause.
        source: SourceError,
    },
}

impl VocabMap {
    /// Reads a map and checks that all translations consist of existing tokens.
    ///
    /// # Errors
    /// The plan is not a vocabulary map, or an invalid one.
    pub fn from_plan(plan: &Plan) -> Result<VocabMap, VocabMapError> {
        let found = plan.metadata.need_str(keys::ARCHITECTURE)?;
        if found != ARCHITECTURE {
            let found = found.to_owned();
            return Err(VocabMapError::Architecture { found });
        }
        let side = |size, sha256| -> Result<Vocabulary, VocabMapError> {
            let n_tokens = plan.metadata.need_u32(size)?;
            if !(1..=MAX_TOKENS).contains(&n_tokens.into()) {
                return Err(VocabMapError::Size {
                    key: size,
                    found: n_tokens,
                });
            }
            let sha256 = plan.metadata.need_str(sha256)?.to_owned();
            Ok(Vocabulary { n_tokens, sha256 })
        };
        let target = side(TARGET_SIZE, TARGET_TOKENS_SHA256)?;
        let draft = side(DRAFT_SIZE, DRAFT_TOKENS_SHA256)?;
        Ok(VocabMap {
            target_to_draft: read(plan, [TARGET_OFFSETS, TARGET_IDS], &target, &draft)?,
            draft_to_target: read(plan, [DRAFT_OFFSETS, DRAFT_IDS], &draft, &target)?,
            target,
            draft,
        })
    }

    /// Returns the plan of the map's file.
    pub fn to_plan(&self) -> Plan {
        let mut metadata = Metadata::new();
        metadata.set(keys::ARCHITECTURE, ARCHITECTURE);
        metadata.set(TARGET_SIZE, self.target.n_tokens);
        metadata.set(TARGET_TOKENS_SHA256, self.target.sha256.as_str());
        metadata.set(DRAFT_SIZE, self.draft.n_tokens);
        metadata.set(DRAFT_TOKENS_SHA256, self.draft.sha256.as_str());
        let mut plan = Plan::new(metadata);
        plan.tensors = vec![
            tensor(TARGET_OFFSETS, &self.target_to_draft.offsets),
            tensor(TARGET_IDS, &self.target_to_draft.ids),
            tensor(DRAFT_OFFSETS, &self.draft_to_target.offsets),
            tensor(DRAFT_IDS, &self.draft_to_target.ids),
        ];
        plan
    }
}

/// Reads one direction.
fn read(
    plan: &Plan,
    [offsets, ids]: [&'static str; 2],
    from: &Vocabulary,
    to: &Vocabulary,
) -> Result<Translation, VocabMapError> {
    let n_from = u64::from(from.n_tokens);
    let exactly = n_from + 1;
    let starts = integers(plan, offsets, exactly..=exactly)?;
    let numbers = integers(plan, ids, 0..=n_from * MAX_MEAN_LEN)?;
    let mut previous = 0;
    for (index, &start) in starts.iter().enumerate() {
        let expected = match index {
            0 => 0..=0,
            i if i as u64 == n_from => numbers.len() as i64..=numbers.len() as i64,
            _ => previous..=numbers.len() as i64,
        };
        if !expected.contains(&start) || start < previous {
            return Err(VocabMapError::Element {
                tensor: offsets,
                index,
                found: start,
                expected: format!("{} to {}", expected.start(), expected.end()),
            });
        }
        previous = start;
    }
    let exists = |id: &i64| (0..i64::from(to.n_tokens)).contains(id);
    if let Some(index) = numbers.iter().position(|id| !exists(id)) {
        return Err(VocabMapError::Element {
            tensor: ids,
            index,
            found: numbers[index],
            expected: format!("a token, 0 to {}", to.n_tokens - 1),
        });
    }
    let narrow = |numbers: Vec<i64>| numbers.into_iter().map(|n| n as u32).collect();
    Ok(Translation {
        offsets: narrow(starts),
        ids: narrow(numbers),
    })
}

/// Reads a tensor of integers; `expected` is the allowed number of elements.
fn integers(
    plan: &Plan,
    name: &'static str,
    expected: std::ops::RangeInclusive<u64>,
) -> Result<Vec<i64>, VocabMapError> {
    let tensor = plan
        .tensor(name)
        .ok_or(VocabMapError::Missing { tensor: name })?;
    let fits = tensor.dtype == DType::I64
        && tensor.logical_shape().len() == 1
        && expected.contains(&tensor.n_elements());
    if !fits {
        let (min, max) = (expected.start(), expected.end());
        return Err(VocabMapError::Layout {
            tensor: name,
            found: format!("{} {:?}", tensor.dtype, tensor.shape),
            expected: match min == max {
                true => format!("{min} elements"),
                false => format!("{min} to {max} elements"),
            },
        });
    }
    let bytes = tensor.read_all().map_err(|source| VocabMapError::Read {
        tensor: name,
        source,
    })?;
    let (numbers, _) = bytes.as_chunks::<8>();
    Ok(numbers.iter().map(|&n| i64::from_le_bytes(n)).collect())
}

fn tensor(name: &str, numbers: &[u32]) -> Tensor {
    let bytes = numbers.iter().flat_map(|&n| i64::from(n).to_le_bytes());
    let source = Owned {
        bytes: bytes.collect(),
        row_bytes: 8 * numbers.len() as u64,
    };
    let shape = vec![numbers.len() as u64];
    Tensor::new(name, shape, DType::I64, Arc::new(source)).expect("I64 has no blocks to fill")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> VocabMap {
        let tokens = |texts: &[&str]| Vocabulary::of(&texts.iter().collect());
        VocabMap {
            target: tokens(&["a", "b", "ab"]),
            draft: tokens(&["a", "b"]),
            target_to_draft: Translation::new([vec![0], vec![1], vec![0, 1]]),
            draft_to_target: Translation::new([vec![0], vec![]]),
        }
    }

    fn set(plan: &mut Plan, name: &str, numbers: &[u32]) {
        let at = plan.tensors.iter().position(|t| t.name == name).unwrap();
        plan.tensors[at] = tensor(name, numbers);
    }

    #[test]
    fn written_values_are_read_back() {
        let read = VocabMap::from_plan(&map().to_plan()).unwrap();
        assert_eq!(read, map());
        assert_eq!(read.target_to_draft.of(2), [0, 1]);
        assert!(read.draft_to_target.of(1).is_empty());
        assert!(read.draft_to_target.of(2).is_empty(), "no such token");
    }

    type Change = fn(&mut Plan);

    #[test]
    fn damage_is_located() {
        let cases: [(Change, &str); 7] = [
            (
                |p| p.metadata.set(keys::ARCHITECTURE, "llama"),
                "key general.architecture: expected specconv-vocab-map, found llama",
            ),
            (
                |p| p.metadata.set(DRAFT_SIZE, 0u32),
                "key specconv.vocab_map.draft_size: 0 tokens, expected 1 to 16777216",
            ),
            (
                |p| p.tensors.truncate(3),
                "tensor draft_to_target.ids is missing",
            ),
            (
                |p| set(p, TARGET_OFFSETS, &[0, 1, 4]),
                "tensor target_to_draft.offsets: I64 [3], expected I64 of 4 elements",
            ),
            (
                |p| set(p, TARGET_OFFSETS, &[0, 2, 1, 4]),
                "tensor target_to_draft.offsets: element 2 is 1, expected 2 to 4",
            ),
            (
                |p| set(p, TARGET_OFFSETS, &[0, 1, 2, 3]),
                "tensor target_to_draft.offsets: element 3 is 3, expected 4 to 4",
            ),
            (
                |p| set(p, TARGET_IDS, &[0, 1, 0, 2]),
                "tensor target_to_draft.ids: element 3 is 2, expected a token, 0 to 1",
            ),
        ];
        for (break_it, message) in cases {
            let mut plan = map().to_plan();
            break_it(&mut plan);
            let error = VocabMap::from_plan(&plan).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
