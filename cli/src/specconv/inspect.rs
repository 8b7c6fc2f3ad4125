//! `specconv inspect`: describes a GGUF file and checks that it is complete.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use anyhow::Context;
use schemas::arch::keys;
use schemas::gguf::{self, Metadata, Plan, SPLIT_COUNT, Value};
use schemas::report::{
    HeadPlace, HeadReport, InspectReport, KeyReport, SCHEMA_VERSION, TensorReport, TokenizerReport,
    Verdict,
};

use super::check::{Checked, check};
use super::file_type;
use super::passport;
use super::write::type_shares;
use crate::output::{self, Format, count};

/// Show the content of a GGUF file, and check it
///
/// Exits with 1 if the tensors do not match the keys: a head that is declared but missing, or tensors that are missing,
/// unexpected or of another shape. Tensor data is read only to compare it with a passport, the result of specrun
/// verify --stamp; a passport about other tensors exits with 1.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// GGUF file, or first shard of a split model
    file: PathBuf,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Do not read the tensors to compare them with the passport
    #[arg(long)]
    no_hash: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let report = inspect(args)?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(report.verdict)
}

fn inspect(args: &Args) -> anyhow::Result<InspectReport> {
    let path = args.file.as_path();
    let plan = gguf::open(path)?;
    let n_parts = gguf::open_one(path)?.metadata.u32(SPLIT_COUNT)?;
    let Checked {
        layers,
        mtp,
        notes,
        mut problems,
    } = check(&plan);
    let passport = passport::check(&plan, path, !args.no_hash)?;
    let problem = passport
        .as_ref()
        .and_then(|own| passport::problem(own.status));
    problems.extend(problem.map(str::to_owned));
    let text = |key| plan.metadata.str(key).ok().flatten().map(str::to_owned);
    Ok(InspectReport {
        schema_version: SCHEMA_VERSION,
        path: path.display().to_string(),
        n_parts: n_parts.unwrap_or(1).max(1),
        size_bytes: size_on_disk(path, &plan)?,
        gguf_version: plan.version,
        alignment_bytes: plan.alignment()?,
        architecture: text(keys::ARCHITECTURE),
        name: text("general.name"),
        file_type: file_type::of(&plan.metadata),
        n_tensors: plan.tensors.len() as u64,
        n_elements: plan.n_elements(),
        types: type_shares(&plan.tensors),
        layers,
        mtp,
        tokenizer: tokenizer(&plan.metadata),
        keys: plan.metadata.iter().map(key_report).collect(),
        passport,
        tensors: args.tensors.then(|| tensor_reports(&plan)),
        notes,
        verdict: Verdict::of(problems.is_empty()),
        problems,
    })
}

/// Returns the bytes of the file, or of all shards that hold tensors.
fn size_on_disk(path: &Path, plan: &Plan) -> anyhow::Result<u64> {
    let origins = plan.tensors.iter().filter_map(|t| t.source.origin());
    let mut files: BTreeSet<&Path> = origins.map(|origin| origin.path).collect();
    files.insert(path);
    let sizes = files.into_iter().map(|file| {
        let metadata = fs::metadata(file).with_context(|| file.display().to_string())?;
        anyhow::Ok(metadata.len())
    });
    sizes.sum()
}

fn tokenizer(metadata: &Metadata) -> Option<TokenizerReport> {
    let text = |key| metadata.str(key).ok().flatten();
    let len = |key| {
        let array = metadata.get(key).and_then(Value::as_array);
        array.map_or(0, |array| array.len() as u64)
    };
    let id = |key| metadata.u32(key).ok().flatten();
    Some(TokenizerReport {
        model: text("tokenizer.ggml.model")?.to_owned(),
        pre: text("tokenizer.ggml.pre").map(str::to_owned),
        n_tokens: len(keys::TOKENS),
        n_merges: len("tokenizer.ggml.merges"),
        bos_token_id: id("tokenizer.ggml.bos_token_id"),
        eos_token_id: id("tokenizer.ggml.eos_token_id"),
        has_chat_template: metadata.contains("tokenizer.chat_template"),
    })
}

/// Maximum length of a listed value, in characters.
const MAX_VALUE_LEN: usize = 100;
/// Columns of a line of text that lists the items of an array.
const LINE: usize = 80;
/// Fewest characters of an array's items that are listed.
const MIN_ITEMS: usize = 16;

fn key_report((key, value): (&str, &Value)) -> KeyReport {
    let value_type = match value.as_array() {
        Some(array) => format!("[{}; {}]", array.item_type(), array.len()),
        None => value.value_type().to_string(),
    };
    let mut value = value.to_string();
    if let Some((cut, _)) = value.char_indices().nth(MAX_VALUE_LEN) {
        value.truncate(cut);
        value.push_str("...");
    }
    KeyReport {
        key: key.to_owned(),
        value_type,
        value,
    }
}

fn tensor_reports(plan: &Plan) -> Vec<TensorReport> {
    let report = |tensor: &gguf::Tensor| TensorReport {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        dtype: tensor.dtype.to_string(),
        offset_bytes: tensor.source.origin().map_or(0, |origin| origin.offset),
        size_bytes: tensor.size_bytes,
    };
    plan.tensors.iter().map(report).collect()
}

/// Text output of the report.
struct Text<'a>(&'a InspectReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        writeln!(f, "{}", r.path)?;
        for (label, value) in overview(r) {
            writeln!(f, "  {label:<13} {value}")?;
        }
        writeln!(f, "  keys          {}", r.keys.len())?;
        let widest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let width = widest(&mut r.keys.iter().map(|k| k.key.len()));
        let type_width = widest(&mut r.keys.iter().map(|k| k.value_type.len()));
        let left = LINE.saturating_sub(width + type_width + 8).max(MIN_ITEMS);
        for k in &r.keys {
            // The first items of an array say what it holds. Other values may take a line of their own.
            let left = match k.value.starts_with('[') {
                true => left,
                false => LINE - 6,
            };
            let value = match k.value.chars().count() > left {
                true => k
                    .value
                    .chars()
                    .take(left - 3)
                    .chain("...".chars())
                    .collect(),
                false => k.value.clone(),
            };
            writeln!(
                f,
                "    {:<width$}  {:<type_width$}  {value}",
                k.key, k.value_type
            )?;
        }
        if let Some(tensors) = &r.tensors {
            writeln!(f, "  tensor list: name, shape, type, offset, bytes")?;
            let width = widest(&mut tensors.iter().map(|t| t.name.len()));
            for t in tensors {
                let shape = t.shape.iter().map(u64::to_string).collect::<Vec<_>>();
                writeln!(
                    f,
                    "    {:<width$}  {:<18} {:<6} {:>12} {:>12}",
                    t.name,
                    shape.join(" x "),
                    t.dtype,
                    t.offset_bytes,
                    t.size_bytes
                )?;
            }
        }
        for note in &r.notes {
            writeln!(f, "  note          {note}")?;
        }
        match r.problems.as_slice() {
            [] => write!(f, "  problems      none"),
            problems => {
                write!(f, "  problems      {}", problems.len())?;
                problems.iter().try_for_each(|p| write!(f, "\n    {p}"))
            }
        }
    }
}

/// Returns the lines before the list of keys, each with its label.
fn overview(r: &InspectReport) -> Vec<(&'static str, String)> {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let container = format!(
        "GGUF version {}, alignment {} bytes, {} in {}",
        r.gguf_version,
        r.alignment_bytes,
        output::bytes(r.size_bytes),
        count(r.n_parts.into(), "file")
    );
    let mut lines = vec![
        ("container", container),
        ("architecture", or_dash(&r.architecture)),
        ("name", or_dash(&r.name)),
        ("file type", or_dash(&r.file_type)),
    ];
    lines.extend(r.layers.iter().map(|layers| {
        let (n_attention, n_recurrent) = (layers.n_attention, layers.n_recurrent);
        let mut counts = format!("{n_attention} attention, {n_recurrent} recurrent");
        if layers.n_feed_forward > 0 {
            counts += &format!(", {} feed-forward", layers.n_feed_forward);
        }
        let line = format!("{}: {counts}, {} MTP", layers.n_block, layers.n_mtp);
        ("layers", line)
    }));
    lines.extend(r.mtp.iter().map(|head| ("MTP head", head_line(head))));
    lines.push((
        "tokenizer",
        or_dash(&r.tokenizer.as_ref().map(tokenizer_line)),
    ));
    lines.extend(r.passport.iter().flat_map(|own| {
        let labels = iter::once("passport").chain(iter::repeat(""));
        labels.zip(passport::lines(own))
    }));
    let tensors = format!("{}, {} elements", r.n_tensors, r.n_elements);
    lines.push(("tensors", tensors));
    lines.extend(r.types.iter().map(|share| {
        let tensors = count(share.n_tensors, "tensor");
        let size = output::bytes(share.size_bytes);
        ("", format!("{:<8} {tensors:>12} {size:>9}", share.dtype))
    }));
    lines
}

fn head_line(head: &HeadReport) -> String {
    let place = match head.place {
        HeadPlace::Inline => "inline",
        HeadPlace::Sidecar => "sidecar, without the trunk",
        HeadPlace::None => "none",
    };
    let mut line = place.to_owned();
    if head.place != HeadPlace::None {
        let tensors = count(head.n_tensors, "tensor");
        let _ = write!(line, ", {tensors}, {}", output::bytes(head.size_bytes));
    }
    for (names, finding) in [(&head.missing, "missing"), (&head.extra, "extra")] {
        if !names.is_empty() {
            let _ = write!(line, ", {} {finding}", names.len());
        }
    }
    line
}

fn tokenizer_line(tokenizer: &TokenizerReport) -> String {
    let id = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
    let template = if tokenizer.has_chat_template {
        "a"
    } else {
        "no"
    };
    format!(
        "{} ({}), {} tokens, {} merges, bos {}, eos {}, {template} chat template",
        tokenizer.model,
        tokenizer.pre.as_deref().unwrap_or("no pre-tokenizer named"),
        tokenizer.n_tokens,
        tokenizer.n_merges,
        id(tokenizer.bos_token_id),
        id(tokenizer.eos_token_id)
    )
}
