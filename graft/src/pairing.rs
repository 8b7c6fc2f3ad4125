//! Compatibility of a head and a body: keys, tokens, lineage, tensors that both files have, and
//! statistics of the head's values.

use bstr::BStr;
use kernels::statistics::{
    Defect, MAX_PARTS_RATIO, NormOffset, Survey, Values, cosine, norm_offset, survey,
};
use schemas::arch::mtp_layout::name_in_block;
use schemas::arch::nextn::EH_PROJ;
use schemas::arch::{keys, reduced_vocab};
use schemas::gguf::{Metadata, Plan, SourceError, Strings, Tensor, Value};
use schemas::report::{Finding, HeadTensorReport, PairingCheck, PairingOutcome, PairingReport};
use schemas::threads;

use crate::error::{Error, Role};
use crate::model::Model;

/// Keys after `{arch}.` that size a layer or change what it computes, with the default of an absent
/// key.
const PAIRED_KEYS: &[(&str, Default)] = &[
    (keys::EMBEDDING_LENGTH, Default::Unknown),
    (keys::HEAD_COUNT, Default::Unknown),
    (keys::HEAD_COUNT_KV, Default::Unknown),
    (keys::KEY_LENGTH, Default::Unknown),
    (keys::VALUE_LENGTH, Default::Unknown),
    (keys::FEED_FORWARD_LENGTH, Default::Unknown),
    (keys::EXPERT_COUNT, Default::Unknown),
    ("expert_used_count", Default::Unknown),
    ("expert_feed_forward_length", Default::Unknown),
    (keys::EMBEDDING_LENGTH_OUT, Default::Unknown),
    (keys::HYPER_CONNECTION_COUNT, Default::Unknown),
    (keys::RMS_EPSILON, Default::Unknown),
    (keys::ROPE_DIMENSION_COUNT, Default::Unknown),
    (keys::ROPE_FREQ_BASE, Default::Float(10_000.0)),
    (keys::ROPE_SCALING_TYPE, Default::Text("none")),
    (keys::ROPE_SCALING_FACTOR, Default::Float(1.0)),
];

/// Default of an absent key.
#[derive(Clone, Copy)]
enum Default {
    Unknown,
    Float(f32),
    Text(&'static str),
}

impl Default {
    fn value(self) -> Option<String> {
        match self {
            Default::Unknown => None,
            Default::Float(x) => Some(x.to_string()),
            Default::Text(text) => Some(text.to_owned()),
        }
    }
}

/// Keys about the origin of a model.
const LINEAGE_KEYS: &[&str] = &[
    "general.name",
    "general.basename",
    "general.finetune",
    "general.base_model.0.name",
    "general.base_model.0.repo_url",
];

/// Minimum cosine of embeddings of the same model, possibly requantized.
const SAME_COSINE: f64 = 0.9;
/// Embeddings with a lower cosine are of unrelated models.
const RELATED_COSINE: f64 = 0.5;

/// Compares a donor's head with a target before grafting. Reads the head's values and some rows of
/// the other tensors; memory does not grow with the files.
///
/// # Errors
/// See [`graft_mtp`](crate::graft_mtp) for files that cannot be joined. Fails also if data cannot
/// be read.
pub fn pair(target: &Plan, donor: &Plan) -> Result<PairingReport, Error> {
    let target = Model::new(Role::Target, target)?;
    let donor = &reduced_vocab::adopt(donor.clone());
    let donor = Model::donor(donor, &target)?;
    donor.check_head()?;
    let mut checks = Vec::new();
    checks.extend(keys_checks(&target, &donor));
    checks.extend(token_checks(&target, &donor)?);
    checks.extend(shared_origin_checks(&target, &donor));
    let shared = shared_checks(&target, &donor)?;
    let nothing_shared = shared.iter().all(|check| check.finding == Finding::Unknown);
    checks.extend(shared);
    let head: Vec<&Tensor> = donor.plan.tensors.iter().collect();
    let head: Vec<&Tensor> = head.into_iter().filter(|t| donor.in_head(t)).collect();
    let statistics: Vec<HeadStatistics<'_>> =
        threads::try_map(&head, || (), |(), tensor| measure(tensor, &target))?;
    checks.extend(statistics.iter().flat_map(HeadStatistics::checks));
    let worst = checks.iter().map(|check| check.finding).max();
    let outcome = match worst {
        Some(Finding::Refuses) => PairingOutcome::Refused,
        Some(Finding::Differs) => PairingOutcome::Plausible,
        _ if nothing_shared => PairingOutcome::Plausible,
        _ => PairingOutcome::Compatible,
    };
    Ok(PairingReport {
        outcome,
        donor_block: donor.n_layer,
        target_block: target.n_layer,
        checks,
        tensors: statistics.iter().map(HeadStatistics::report).collect(),
    })
}

fn check(
    subject: impl Into<String>,
    finding: Finding,
    target: impl ToString,
    donor: impl ToString,
) -> PairingCheck {
    PairingCheck {
        subject: subject.into(),
        finding,
        target: target.to_string(),
        donor: donor.to_string(),
    }
}

/// Compares the values of both files, if both are known.
fn compare(
    subject: impl Into<String>,
    target: Option<String>,
    donor: Option<String>,
    unequal: Finding,
) -> PairingCheck {
    let finding = match (&target, &donor) {
        (Some(target), Some(donor)) if target == donor => Finding::Same,
        (Some(_), Some(_)) => unequal,
        _ => Finding::Unknown,
    };
    let text = |value: Option<String>| value.unwrap_or_else(|| "not stated".to_owned());
    check(subject, finding, text(target), text(donor))
}

fn keys_checks(target: &Model<'_>, donor: &Model<'_>) -> Vec<PairingCheck> {
    let mut checks = Vec::new();
    for &(suffix, default) in PAIRED_KEYS {
        let key = target.key(suffix);
        let [ours, theirs] = [target, donor].map(|m| m.plan.metadata.get(&key));
        // Arrays differ by layer; grafting compares the shapes that follow from them.
        let is_array = |value: Option<&Value>| value.is_some_and(|v| v.as_array().is_some());
        if is_array(ours) || is_array(theirs) || (ours.is_none() && theirs.is_none()) {
            continue;
        }
        let is_stated = donor.plan.metadata.contains(&donor.key(keys::BLOCK_COUNT));
        let text = |value: Option<&Value>| value.map(shown).or_else(|| default.value());
        let theirs = text(theirs).filter(|_| is_stated);
        checks.push(compare(key, text(ours), theirs, Finding::Refuses));
    }
    checks
}

/// Formats a value for comparison: text without quotes, numbers without their type.
fn shown(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    }
}

/// Maximum number of differing tokens that are reported.
const SHOWN_TOKENS: usize = 3;

fn token_checks(target: &Model<'_>, donor: &Model<'_>) -> Result<Vec<PairingCheck>, Error> {
    fn tokens<'a>(model: &Model<'a>) -> Result<Option<&'a Strings>, Error> {
        let read = model.plan.metadata.strings(keys::TOKENS);
        let role = model.role;
        read.map_err(|source| Error::Key { role, source })
    }
    let (ours, theirs) = (tokens(target)?, tokens(donor)?);
    let count = |tokens: Option<&Strings>| tokens.map(|t| format!("{} tokens", t.len()));
    let mut checks = vec![compare(
        keys::TOKENS,
        count(ours),
        count(theirs),
        Finding::Refuses,
    )];
    let pairs = ours.into_iter().flatten().zip(theirs.into_iter().flatten());
    let different = pairs.enumerate().filter(|(_, (a, b))| a != b);
    for (id, (ours, theirs)) in different.take(SHOWN_TOKENS) {
        let quoted = |token: &BStr| format!("{token:?}");
        let subject = format!("token {id}");
        checks.push(check(
            subject,
            Finding::Refuses,
            quoted(ours),
            quoted(theirs),
        ));
    }
    Ok(checks)
}

fn shared_origin_checks(target: &Model<'_>, donor: &Model<'_>) -> Vec<PairingCheck> {
    let text = |metadata: &Metadata, key: &str| metadata.get(key).map(shown);
    let both = LINEAGE_KEYS.iter().map(|&key| {
        let [ours, theirs] = [target, donor].map(|m| text(&m.plan.metadata, key));
        compare(key, ours, theirs, Finding::Differs)
    });
    // A value of one file only cannot be compared.
    both.filter(|check| check.finding != Finding::Unknown)
        .collect()
}

/// Compares tensors outside of blocks that both files have: they show for which trunk the head was
/// trained.
fn shared_checks(target: &Model<'_>, donor: &Model<'_>) -> Result<Vec<PairingCheck>, Error> {
    let both = |name: &str| Some((target.plan.tensor(name)?, donor.plan.tensor(name)?));
    let unknown = |name: &str| check(name, Finding::Unknown, "present", "nothing to compare");
    let mut checks = Vec::new();

    let name = "output_norm.weight";
    checks.push(match both(name) {
        None => unknown(name),
        Some((ours, theirs)) => {
            let is_same =
                ours.dtype == theirs.dtype && bytes(ours, target)? == bytes(theirs, donor)?;
            let finding = match is_same {
                true => Finding::Same,
                false => Finding::Differs,
            };
            let text = |tensor: &Tensor, model: &Model<'_>| {
                let found = survey(tensor, 1).map_err(data_error(model.role, tensor))?;
                let found = found
                    .map(|s| s.values())
                    .map(|v| format!("mean {:.4}, rms {:.4}", v.mean(), v.rms()));
                Ok::<_, Error>(found.unwrap_or_else(|| tensor.dtype.to_string()))
            };
            check(name, finding, text(ours, target)?, text(theirs, donor)?)
        }
    });

    for name in target.head.mixers {
        let Some((ours, theirs)) = both(name) else {
            checks.push(unknown(name));
            continue;
        };
        let is_same = ours.dtype == theirs.dtype && bytes(ours, target)? == bytes(theirs, donor)?;
        let (finding, donor) = match is_same {
            true => (Finding::Same, "the same"),
            false => (
                Finding::Refuses,
                "another one for its head; readers would use the target's",
            ),
        };
        checks.push(check(*name, finding, "one for trunk and head", donor));
    }

    let name = "token_embd.weight";
    let angle = match both(name) {
        None => None,
        Some((ours, theirs)) => cosine(ours, theirs).map_err(data_error(Role::Donor, theirs))?,
    };
    checks.push(match angle {
        None => unknown(name),
        Some(cosine) => {
            let finding = match cosine {
                c if c >= SAME_COSINE => Finding::Same,
                c if c >= RELATED_COSINE => Finding::Differs,
                _ => Finding::Refuses,
            };
            let donor = format!("cosine {cosine:.4} to the target's");
            check(name, finding, "1", donor)
        }
    });
    Ok(checks)
}

fn bytes(tensor: &Tensor, model: &Model<'_>) -> Result<Vec<u8>, Error> {
    tensor.read_all().map_err(data_error(model.role, tensor))
}

fn data_error(role: Role, tensor: &Tensor) -> impl FnOnce(SourceError) -> Error {
    let tensor = tensor.name.clone();
    move |source| Error::Data {
        role,
        tensor,
        source,
    }
}

/// A tensor of the head and its statistics.
struct HeadStatistics<'a> {
    tensor: &'a Tensor,
    /// For `eh_proj`, one part per half: first the embedding's, then the hidden state's.
    survey: Option<Survey>,
    /// Statistics of the same tensor in a trunk layer; for norms only.
    trunk: Option<Values>,
}

fn measure<'a>(tensor: &'a Tensor, target: &Model<'_>) -> Result<HeadStatistics<'a>, Error> {
    let name = name_in_block(&tensor.name);
    let n_parts = match name {
        EH_PROJ => 2,
        _ => 1,
    };
    let found = survey(tensor, n_parts).map_err(data_error(Role::Donor, tensor))?;
    let like = target
        .trunk_like_head()
        .filter(|_| name.ends_with("norm.weight"));
    let like = like.and_then(|block| target.block_tensor(block, name));
    let trunk = match like {
        None => None,
        Some(like) => survey(like, 1).map_err(data_error(Role::Target, like))?,
    };
    Ok(HeadStatistics {
        tensor,
        survey: found,
        trunk: trunk.map(|trunk| trunk.values()),
    })
}

impl HeadStatistics<'_> {
    fn checks(&self) -> Vec<PairingCheck> {
        let name = || self.tensor.name.clone();
        let Some(survey) = &self.survey else {
            let donor = format!("type {} cannot be decoded", self.tensor.dtype);
            return vec![check(name(), Finding::Unknown, "finite numbers", donor)];
        };
        let mut checks = Vec::new();
        let mut refuse = |target: &str, donor: String| {
            checks.push(check(name(), Finding::Refuses, target, donor));
        };
        match (survey.defect(), survey.parts.as_slice()) {
            (Some(Defect::Implausible(share)), _) => refuse(
                "weights",
                format!(
                    "{:.0} % of the values are too large or too small for weights, as if packed data were read as {}",
                    100.0 * share,
                    self.tensor.dtype
                ),
            ),
            (Some(Defect::NotFinite(n)), _) => {
                refuse("finite numbers", format!("{n} NaN or infinite"))
            }
            (Some(Defect::Zero), _) => refuse("weights", "all zero".to_owned()),
            (Some(Defect::ZeroPart(part)), _) => {
                let half = ["embedding", "hidden state"][part];
                refuse("weights", format!("the {half}'s half is all zero"));
            }
            (None, [embedding, hidden]) => {
                let ratio = embedding.values.rms() / hidden.values.rms();
                let is_even = (1.0 / MAX_PARTS_RATIO..=MAX_PARTS_RATIO).contains(&ratio);
                let finding = if is_even {
                    Finding::Same
                } else {
                    Finding::Differs
                };
                let bound = format!("at most {MAX_PARTS_RATIO} to 1");
                let ratio = format!("embedding half {ratio:.3} times the hidden state's");
                checks.push(check(name(), finding, bound, ratio));
            }
            (None, _) => {}
        }
        if let Some(trunk) = &self.trunk {
            let mean = survey.values().mean();
            let (finding, what) = match norm_offset(mean, trunk.mean()) {
                None => (Finding::Same, ""),
                Some(NormOffset::Missing) => {
                    (Finding::Differs, ", as if the +1 offset was not applied")
                }
                Some(NormOffset::Twice) => {
                    (Finding::Differs, ", as if the +1 offset was applied twice")
                }
            };
            let target = format!("mean {:.3} in the trunk", trunk.mean());
            let donor = format!("mean {mean:.3}{what}");
            checks.push(check(name(), finding, target, donor));
        }
        checks
    }

    fn report(&self) -> HeadTensorReport {
        HeadTensorReport {
            tensor: self.tensor.name.clone(),
            dtype: self.tensor.dtype.to_string(),
            n_elements: self.tensor.n_elements(),
            size_bytes: self.tensor.size_bytes,
            values: self.survey.as_ref().map(|survey| survey.values().report()),
            trunk: self.trunk.as_ref().map(Values::report),
        }
    }
}
