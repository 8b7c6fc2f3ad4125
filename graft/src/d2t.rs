//! Draft vocabularies: adds a draft-to-target map (`d2t`) to a draft, removes it, and trims an
//! output matrix to a set of tokens.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use schemas::arch::nextn::{self, SHARED_HEAD_HEAD};
use schemas::arch::{self, ArchSpec, MARKOV_W2, heads, keys};
use schemas::gguf::{Extent, Metadata, Plan, ReadError, Source, SourceError, Tensor};
use schemas::vocab::{D2T, D2tError, check_d2t, read_d2t, write_d2t};

use crate::error::{Error, Role};
use crate::mtp::head_layers;

/// The draft's output matrix.
const OUTPUT: &str = "output.weight";

/// Error of a change of a draft's vocabulary.
#[derive(Debug, thiserror::Error)]
pub enum VocabError {
    /// The file of a head is invalid.
    #[error(transparent)]
    Head(#[from] Error),
    /// The map is invalid.
    #[error("{0}")]
    D2t(#[from] D2tError),
    /// The architecture has no draft vocabulary.
    #[error("architecture {found}: expected a draft of eagle3 or dflash{}", if *.has_head { ", or --layout specconv for an MTP head" } else { "" })]
    Architecture {
        /// Its architecture.
        found: String,
        /// True if the architecture can have an MTP head.
        has_head: bool,
    },
    /// The draft already has a map.
    #[error("tensor {tensor} already exists; remove it with split-vocab")]
    HasMap {
        /// Tensor name of the map.
        tensor: String,
    },
    /// The draft has no map.
    #[error("tensor {tensor} is missing: the draft has no vocabulary map")]
    NoMap {
        /// Tensor name of the map.
        tensor: String,
    },
    /// The draft has no output matrix; it uses the target's.
    #[error("tensor {tensor} is missing: there is no output head whose rows could be mapped")]
    NoOutput {
        /// Tensor name of the output.
        tensor: String,
    },
    /// The map's length differs from the rows of the output.
    #[error("{n_ids} ids, but tensor {tensor} has {n_rows} rows")]
    Length {
        /// Number of ids in the map.
        n_ids: usize,
        /// Tensor name of the output.
        tensor: String,
        /// Number of its rows.
        n_rows: u64,
    },
    /// The numbers are valid neither as ids nor as offsets.
    #[error("not a vocabulary map: invalid as ids ({absolute}) and as offsets ({offsets})")]
    Neither {
        /// Error when read as ids.
        absolute: D2tError,
        /// Error when read as offsets.
        offsets: D2tError,
    },
    /// The numbers are valid both as ids and as offsets.
    #[error("the {n_ids} numbers are valid as ids and as offsets; choose with --as")]
    Either {
        /// Length of the map.
        n_ids: usize,
    },
    /// `t2d` marks other tokens than `d2t` names.
    #[error("t2d marks {n_marked} tokens, d2t lists {n_ids}{}", if .n_marked == .n_ids { " others" } else { "" })]
    Mask {
        /// Number of tokens that `t2d` marks.
        n_marked: usize,
        /// Number of tokens that `d2t` names.
        n_ids: usize,
    },
    /// The draft's output has no row for a token.
    #[error("token {id} has no row in tensor {tensor}")]
    NoRow {
        /// Id of the token.
        id: u32,
        /// Tensor name of the output.
        tensor: String,
    },
    /// The file has no token list.
    #[error("key tokenizer.ggml.tokens is missing, so the target's tokens are unknown")]
    NoTokens,
}

/// Encoding of a map's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Ids of the target's tokens.
    Absolute,
    /// Offsets: token id minus row number.
    Offset,
}

/// A map as published checkpoints store it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredMap {
    /// `d2t`: ids or offsets.
    pub d2t: Vec<i64>,
    /// `t2d`: for each token of the target, true if the draft has it.
    pub t2d: Option<Vec<bool>>,
}

impl StoredMap {
    /// Returns the token ids of the map, for a target of `n_target` tokens. Ids and offsets are
    /// distinguished by the valid range of ids and by the mask, never by a guess.
    ///
    /// # Errors
    /// The numbers are not a valid map or contradict the mask; or they are valid both as ids and as
    /// offsets, and neither `kind` nor the mask decides.
    pub fn ids(&self, n_target: u64, kind: Option<MapKind>) -> Result<Vec<u32>, VocabError> {
        let offsets = || -> Vec<i64> {
            let rows = (0i64..).zip(&self.d2t);
            rows.map(|(row, offset)| row.saturating_add(*offset))
                .collect()
        };
        let absolute = check_d2t(D2T, &self.d2t, n_target);
        let offset = check_d2t(D2T, &offsets(), n_target);
        let ids = match (kind, absolute, offset) {
            (Some(MapKind::Absolute), absolute, _) => absolute?,
            (Some(MapKind::Offset), _, offset) => offset?,
            (None, Ok(ids), Err(_)) | (None, Err(_), Ok(ids)) => ids,
            (None, Ok(absolute), Ok(offset)) if absolute == offset => absolute,
            (None, Ok(absolute), Ok(offset)) => {
                match [&absolute, &offset].map(|ids| self.agrees(ids)) {
                    [Some(true), Some(false)] => absolute,
                    [Some(false), Some(true)] => offset,
                    _ => {
                        let n_ids = self.d2t.len();
                        return Err(VocabError::Either { n_ids });
                    }
                }
            }
            (None, Err(absolute), Err(offsets)) => {
                return Err(VocabError::Neither { absolute, offsets });
            }
        };
        if self.agrees(&ids) == Some(false) {
            let marked = self.t2d.iter().flatten().filter(|&&is_marked| is_marked);
            return Err(VocabError::Mask {
                n_marked: marked.count(),
                n_ids: ids.len(),
            });
        }
        Ok(ids)
    }

    /// Checks whether the mask marks exactly these tokens; `None` without a mask.
    fn agrees(&self, ids: &[u32]) -> Option<bool> {
        let mask = self.t2d.as_ref()?;
        let is_marked = |&id: &u32| mask.get(id as usize) == Some(&true);
        let n_marked = mask.iter().filter(|&&is_marked| is_marked).count();
        Some(n_marked == ids.len() && ids.iter().all(is_marked))
    }
}

/// Adds a map to a draft whose output has one row per id.
///
/// # Errors
/// The draft has another architecture, already has a map, or its output has another number of rows;
/// an id is not a token of the target.
pub fn graft_vocab(draft: &Plan, ids: &[u32]) -> Result<Plan, VocabError> {
    check_draft(&draft.metadata)?;
    if draft.tensor(D2T).is_some() {
        let tensor = D2T.to_owned();
        return Err(VocabError::HasMap { tensor });
    }
    let output = draft.tensor(OUTPUT).ok_or_else(|| VocabError::NoOutput {
        tensor: OUTPUT.to_owned(),
    })?;
    if output.n_rows() != ids.len() as u64 {
        return Err(VocabError::Length {
            n_ids: ids.len(),
            tensor: OUTPUT.to_owned(),
            n_rows: output.n_rows(),
        });
    }
    let signed: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
    check_d2t(D2T, &signed, n_tokens(&draft.metadata)?)?;
    let mut grafted = draft.clone();
    // llama.cpp's converter writes it as the last tensor, too.
    grafted.tensors.push(write_d2t(D2T, ids));
    Ok(grafted)
}

/// Removes the map from a draft; returns the draft without it, and the ids.
///
/// # Errors
/// The draft has another architecture, no map, or an invalid one.
pub fn split_vocab(draft: &Plan) -> Result<(Plan, Vec<u32>), VocabError> {
    check_draft(&draft.metadata)?;
    let map = draft.tensor(D2T).ok_or_else(|| VocabError::NoMap {
        tensor: D2T.to_owned(),
    })?;
    let ids = read_d2t(map, n_tokens(&draft.metadata)?)?;
    let mut without = draft.clone();
    without.tensors.retain(|tensor| tensor.name != D2T);
    Ok((without, ids))
}

fn check_draft(metadata: &Metadata) -> Result<(), VocabError> {
    let found = architecture(metadata)?;
    if arch::by_name(found).is_some_and(ArchSpec::is_draft) {
        return Ok(());
    }
    Err(VocabError::Architecture {
        found: found.to_owned(),
        has_head: heads::find(found).is_some(),
    })
}

fn architecture(metadata: &Metadata) -> Result<&str, VocabError> {
    let role = Role::Input;
    let arch = metadata.need_str(keys::ARCHITECTURE);
    arch.map_err(|source| Error::Key { role, source }.into())
}

fn n_tokens(metadata: &Metadata) -> Result<u64, VocabError> {
    let tokens = metadata.strings(keys::TOKENS).ok().flatten();
    let tokens = tokens.ok_or(VocabError::NoTokens)?;
    Ok(tokens.len() as u64)
}

/// Returns the tokens of a draft vocabulary, sorted by id: the `n` most frequent ones and all of
/// `always`. Ties go to the lower id.
pub fn most_frequent(counts: &[u64], n: usize, always: &BTreeSet<u32>) -> Vec<u32> {
    let mut seen: Vec<u32> = (0..counts.len() as u32).collect();
    seen.retain(|&id| counts[id as usize] > 0 && !always.contains(&id));
    seen.sort_by_key(|&id| (std::cmp::Reverse(counts[id as usize]), id));
    seen.truncate(n);
    seen.extend(always.iter().filter(|&&id| (id as usize) < counts.len()));
    seen.sort_unstable();
    seen
}

/// Returns the tokens that a trimmed vocabulary must keep: control tokens, and those named by a
/// `tokenizer.ggml.*_token_id` key.
pub fn special_tokens(metadata: &Metadata) -> BTreeSet<u32> {
    const CONTROL: u32 = 3;
    let types = metadata.u32s("tokenizer.ggml.token_type").ok().flatten();
    let types = types.unwrap_or_default();
    let control = (0u32..).zip(&types).filter(|&(_, &kind)| kind == CONTROL);
    let mut special: BTreeSet<u32> = control.map(|(id, _)| id).collect();
    let ends_in_id = |key: &str| key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
    let named = metadata.iter().filter(|(key, _)| ends_in_id(key));
    special.extend(named.filter_map(|(_, id)| u32::try_from(id.as_u64()?).ok()));
    special
}

/// Returns the tokens that a draft or head can propose if its output is already trimmed; `None` if
/// it has rows for all.
///
/// # Errors
/// The map is invalid.
pub fn proposable(input: &Plan) -> Result<Option<BTreeSet<u32>>, VocabError> {
    let of_head = format!(".{}", nextn::D2T);
    let is_map = |name: &str| name == D2T || name.ends_with(&of_head);
    let Some(map) = input.tensors.iter().find(|tensor| is_map(&tensor.name)) else {
        return Ok(None);
    };
    let ids = read_d2t(map, n_tokens(&input.metadata)?)?;
    Ok(Some(ids.into_iter().collect()))
}

/// A draft with a trimmed output.
pub struct Trimmed {
    /// The file.
    pub plan: Plan,
    /// Bytes of the output that are no longer read per drafted token.
    pub saved_bytes: u64,
}

/// Trims the output of an EAGLE-3 or block draft to these tokens, given as ids of the target; of a DSpark draft
/// also the bias that its Markov head adds.
///
/// # Errors
/// The draft has another architecture or no output matrix; a token has no row in it.
pub fn trim_draft(draft: &Plan, ids: &[u32]) -> Result<Trimmed, VocabError> {
    check_draft(&draft.metadata)?;
    let output = draft.tensor(OUTPUT).ok_or_else(|| VocabError::NoOutput {
        tensor: OUTPUT.to_owned(),
    })?;
    let n_target = n_tokens(&draft.metadata)?;
    let map = draft.tensor(D2T).map(|map| read_d2t(map, n_target));
    let rows = rows_of(output, map.transpose()?.as_deref(), ids)?;
    let mut plan = draft.clone();
    plan.tensors.retain(|tensor| tensor.name != D2T);
    let mut saved_bytes = 0;
    for tensor in &mut plan.tensors {
        if [OUTPUT, MARKOV_W2].contains(&tensor.name.as_str()) {
            let trimmed = take_rows(tensor, &tensor.name, rows.clone());
            saved_bytes += tensor.size_bytes - trimmed.size_bytes;
            *tensor = trimmed;
        }
    }
    plan.tensors.push(write_d2t(D2T, ids));
    Ok(Trimmed { plan, saved_bytes })
}

/// Adds an output matrix of only these tokens to each MTP head, inline or in a sidecar, in the layout
/// that [`keys::TRIMMED_VOCAB`] names.
///
/// # Errors
/// The file has no complete head, no output, or no row for a token.
pub fn trim_mtp(input: &Plan, ids: &[u32]) -> Result<Trimmed, VocabError> {
    let heads: Range<u32> = head_layers(input)?;
    let mut plan = input.clone();
    let mut saved_bytes = 0;
    for block in heads.clone() {
        // Every drafted token is read from one head.
        saved_bytes = trim_head(input, &mut plan, block, ids)?;
    }
    let in_trunk = |t: &Tensor| t.layer().is_some_and(|layer| layer < heads.start);
    if !plan.tensors.iter().any(in_trunk) {
        // A sidecar no longer needs its copy of the target's output.
        plan.tensors.retain(|tensor| tensor.name != OUTPUT);
    }
    plan.metadata.set(keys::MTP_LAYOUT, keys::TRIMMED_VOCAB);
    plan.metadata.set(keys::DRAFT_VOCAB_SIZE, ids.len() as u32);
    plan.metadata.remove(crate::mtp::TENSOR_POSITIONS);
    Ok(Trimmed { plan, saved_bytes })
}

/// Replaces the output of the head in one block. Returns the bytes by which it is smaller.
fn trim_head(input: &Plan, plan: &mut Plan, block: u32, ids: &[u32]) -> Result<u64, VocabError> {
    let own = format!("blk.{block}.{SHARED_HEAD_HEAD}");
    let map_name = format!("blk.{block}.{}", nextn::D2T);
    let sources = [own.as_str(), OUTPUT, "token_embd.weight"];
    let output = sources.iter().find_map(|name| input.tensor(name));
    let output = output.ok_or_else(|| VocabError::NoOutput {
        tensor: own.clone(),
    })?;
    let map = input.tensor(&map_name).map(|map| {
        let n_target = n_tokens(&input.metadata)?;
        Ok::<_, VocabError>(read_d2t(map, n_target)?)
    });
    let rows = rows_of(output, map.transpose()?.as_deref(), ids)?;
    let trimmed = take_rows(output, &own, rows);
    let saved_bytes = output.size_bytes - trimmed.size_bytes;
    let tensors = &mut plan.tensors;
    tensors.retain(|tensor| tensor.name != own && tensor.name != map_name);
    let end = tensors.iter().rposition(|t| t.layer() == Some(block));
    let at = end.map_or(tensors.len(), |last| last + 1);
    tensors.insert(at, trimmed);
    tensors.insert(at + 1, write_d2t(&map_name, ids));
    Ok(saved_bytes)
}

/// Returns each token's row in an output of all tokens, or of those in `map`.
fn rows_of(output: &Tensor, map: Option<&[u32]>, ids: &[u32]) -> Result<Vec<u64>, VocabError> {
    let n_rows = output.n_rows();
    let rows: Option<HashMap<u32, u64>> = map.map(|map| map.iter().copied().zip(0..).collect());
    let row_of = |id: u32| match &rows {
        None => Some(u64::from(id)),
        Some(rows) => rows.get(&id).copied(),
    };
    let row = |&id: &u32| {
        let row = row_of(id).filter(|&row| row < n_rows);
        row.ok_or_else(|| VocabError::NoRow {
            id,
            tensor: output.name.clone(),
        })
    };
    ids.iter().map(row).collect()
}

/// Returns the chosen rows of a tensor as a new tensor, byte for byte.
fn take_rows(tensor: &Tensor, name: &str, rows: Vec<u64>) -> Tensor {
    let mut shape = tensor.logical_shape().to_vec();
    if let Some(last) = shape.get_mut(1) {
        *last = rows.len() as u64;
    }
    Tensor {
        name: name.to_owned(),
        shape,
        dtype: tensor.dtype,
        size_bytes: rows.len() as u64 * tensor.row_bytes(),
        source: Arc::new(SelectedRows {
            inner: tensor.clone(),
            rows,
        }),
    }
}

/// A source of chosen rows of another tensor.
struct SelectedRows {
    inner: Tensor,
    rows: Vec<u64>,
}

impl Source for SelectedRows {
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let rows = &self.rows[rows.start as usize..rows.end as usize];
        for (&row, out) in rows
            .iter()
            .zip(out.chunks_exact_mut(self.inner.row_bytes() as usize))
        {
            self.inner.source.read(row..row + 1, out)?;
        }
        Ok(())
    }

    fn extents(&self) -> Vec<Extent> {
        self.inner.source.extents()
    }

    fn check_unchanged(&self) -> Result<(), ReadError> {
        self.inner.source.check_unchanged()
    }
}

#[cfg(test)]
mod tests {
    use schemas::gguf::{DType, Owned};

    use super::*;

    fn ids(d2t: &[i64], t2d: Option<&[u32]>, n_target: u64) -> Result<Vec<u32>, String> {
        let mask = |marked: &[u32]| {
            (0..n_target as u32)
                .map(|id| marked.contains(&id))
                .collect()
        };
        let stored = StoredMap {
            d2t: d2t.to_vec(),
            t2d: t2d.map(mask),
        };
        stored.ids(n_target, None).map_err(|e| e.to_string())
    }

    #[test]
    fn the_encoding_is_decided_by_the_valid_range() {
        assert_eq!(
            ids(&[1, 1, 4], None, 8),
            Ok(vec![1, 2, 6]),
            "ids do not repeat"
        );
        assert_eq!(ids(&[1, 2, 7], None, 8), Ok(vec![1, 2, 7]), "no token 9");
        assert_eq!(ids(&[0, 0, 0], None, 3), Ok(vec![0, 1, 2]));
        assert_eq!(
            ids(&[0, 1, 4], None, 8).unwrap_err(),
            "the 3 numbers are valid as ids and as offsets; choose with --as"
        );
        assert_eq!(ids(&[0, 1, 4], Some(&[0, 1, 4]), 8), Ok(vec![0, 1, 4]));
        assert_eq!(ids(&[0, 1, 4], Some(&[0, 2, 6]), 8), Ok(vec![0, 2, 6]));
        assert!(ids(&[0, 1, 4], Some(&[0, 2, 5]), 8).is_err());
        assert_eq!(
            ids(&[1, 1, 4], Some(&[1, 2, 7]), 8).unwrap_err(),
            "t2d marks 3 tokens, d2t lists 3 others"
        );
        assert_eq!(
            ids(&[9, 9, 8], None, 8).unwrap_err(),
            "not a vocabulary map: invalid as ids (tensor d2t: row 0 maps to token 9, the target has 8 tokens) and as offsets (tensor d2t: row 0 maps to token 9, the target has 8 tokens)"
        );
        let extreme = ids(&[i64::MAX, i64::MIN], None, 8);
        assert!(extreme.unwrap_err().starts_with("not a vocabulary map"));
    }

    #[test]
    fn the_bias_of_a_dspark_draft_is_trimmed_too() {
        let mut metadata = Metadata::new();
        metadata.set(keys::ARCHITECTURE, "dflash");
        metadata.set(
            keys::TOKENS,
            ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
        );
        let mut draft = Plan::new(metadata);
        for name in [OUTPUT, MARKOV_W2] {
            let bytes = (0..4u8).flat_map(|row| [row; 8]).collect();
            let row_bytes = 8;
            let source = Arc::new(Owned { bytes, row_bytes });
            let tensor = Tensor::new(name, vec![2, 4], DType::F32, source);
            draft.tensors.push(tensor.unwrap());
        }
        let trimmed = trim_draft(&draft, &[1, 3]).unwrap();
        assert_eq!(trimmed.saved_bytes, 32);
        for name in [OUTPUT, MARKOV_W2] {
            let tensor = trimmed.plan.tensor(name).unwrap();
            assert_eq!(tensor.logical_shape(), [2, 2], "{name}");
            let rows = [[1; 8], [3; 8]].concat();
            assert_eq!(tensor.read_all().unwrap(), rows, "{name}");
        }
    }

    #[test]
    fn the_most_frequent_and_the_indispensable() {
        let counts = [5, 0, 9, 9, 1, 0];
        let always = BTreeSet::from([1, 99]);
        assert_eq!(most_frequent(&counts, 2, &always), [1, 2, 3]);
        assert_eq!(
            most_frequent(&counts, 9, &always),
            [0, 1, 2, 3, 4],
            "5 never occurs"
        );
        assert_eq!(most_frequent(&counts, 0, &always), [1]);
    }
}
