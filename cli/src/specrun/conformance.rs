//! `specrun conformance`: runs the traces of the conformance kit.

use std::fmt::{self, Display};
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use kernels::backend::Backend as _;
use runner::model_files::{DraftFiles, Files};
use schemas::outfile::{Existing, OutputNames};
use schemas::report::{
    ConformanceReport, ConformanceTrace, ExpectedTrace, SCHEMA_VERSION, TraceResult, TracedFile,
    Verdict,
};
use schemas::{gguf, input};
use serde_json::{Value, json};
use verify::conformance;

use super::device::{Device, on_device};
use super::model::MachineArgs;
use crate::output::{self, Format};
use crate::report_file::{self, ReportFile};

/// Check that recorded runs give the same tokens, drafts and logits
///
/// A trace names a model, a prompt and speculators, and has the expected result. Everything must be equal, bit for
/// bit. The folder conformance/traces of the repository has traces of every architecture and speculator.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Traces, or folders with traces
    #[arg(value_name = "TRACE.json", required = true)]
    traces: Vec<PathBuf>,
    /// Record the results in the traces instead of comparing them
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A trace and its files.
struct Opened {
    path: PathBuf,
    trace: ConformanceTrace,
    files: Files,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let paths = trace_paths(&args.traces)?;
    let opened = paths.iter().map(|path| open(path, args.record));
    let mut opened = opened.collect::<anyhow::Result<Vec<Opened>>>()?;
    let outputs = match args.record {
        true => claim(&opened)?,
        false => Vec::new(),
    };
    let device = args.machine.device(&opened[0].files.model.path)?;
    let mut results = Vec::new();
    for item in &mut opened {
        let found = run_one(&device, item)?;
        results.push(result(item, &found, args.record));
        item.trace.expected = Some(found);
    }
    let report = ConformanceReport {
        schema_version: SCHEMA_VERSION,
        backend: on_device!(&device, backend => Ok(backend.name()))?,
        verdict: Verdict::of(results.iter().all(|trace| trace.verdict == Verdict::Pass)),
        traces: results,
    };
    let recorded = outputs.into_iter().zip(&opened);
    let recorded = recorded.map(|(output, item)| (output, to_json(&item.trace)));
    report_file::publish(recorded.collect())?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(report.verdict)
}

/// Returns the traces among the arguments, those of a folder in the order of their names.
fn trace_paths(args: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for arg in args {
        if !arg.is_dir() {
            paths.push(arg.clone());
            continue;
        }
        let entries = fs::read_dir(arg).with_context(|| arg.display().to_string())?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut found = entries
            .collect::<Result<Vec<PathBuf>, _>>()
            .with_context(|| arg.display().to_string())?;
        found.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        });
        found.sort();
        ensure!(
            !found.is_empty(),
            "{}: no trace found, expected files named *.json",
            arg.display()
        );
        paths.extend(found);
    }
    Ok(paths)
}

/// Opens a trace and its files. `is_recorded` replaces the hashes of the files by those found.
fn open(path: &Path, is_recorded: bool) -> anyhow::Result<Opened> {
    let name = path.display();
    let text = input::read_text(path, input::Kind::Stream, input::MAX_LIST);
    let text = text.with_context(|| name.to_string())?;
    let mut trace: ConformanceTrace =
        serde_json::from_str(&text).with_context(|| format!("{name}: not a trace"))?;
    ensure!(
        trace.schema_version == SCHEMA_VERSION,
        "{name}: schema_version {}, expected {SCHEMA_VERSION}",
        trace.schema_version
    );
    ensure!(
        is_recorded || trace.expected.is_some(),
        "{name}: the trace has no expected result; --record adds it"
    );
    ensure!(!trace.prompt.is_empty(), "{name}: the prompt has no tokens");
    let folder = path.parent().unwrap_or(Path::new(""));
    let resolve = |file: &mut TracedFile| {
        let path = folder.join(&file.path);
        let found = gguf::file_sha256(&path, &|| false);
        let found = found.with_context(|| path.display().to_string())?;
        if is_recorded {
            file.sha256 = found;
        } else {
            ensure!(
                file.sha256 == found,
                "{}: SHA-256 {found}, {name} expects {}",
                path.display(),
                file.sha256
            );
        }
        Ok(path)
    };
    let model = resolve(&mut trace.model)?;
    let drafts = DraftFiles {
        models: trace
            .drafts
            .iter_mut()
            .map(resolve)
            .collect::<anyhow::Result<_>>()?,
        ..DraftFiles::default()
    };
    Ok(Opened {
        path: path.to_path_buf(),
        trace,
        files: Files::open(&model, &drafts)?,
    })
}

/// Claims the files of the traces, which are updated.
fn claim(opened: &[Opened]) -> anyhow::Result<Vec<ReportFile>> {
    let files = opened.iter().map(|item| &item.files);
    let models = files.flat_map(|files| [&files.model].into_iter().chain(&files.drafts));
    let models: Vec<&Path> = models.map(|model| model.path.as_path()).collect();
    let mut names = OutputNames::new(models, Existing::Replace);
    let claim = |item: &Opened| ReportFile::update(&item.path, &mut names);
    opened.iter().map(claim).collect()
}

fn run_one(device: &Device, item: &Opened) -> anyhow::Result<ExpectedTrace> {
    let found = on_device!(device, backend => {
        conformance::trace(backend, &item.files, &item.trace).map_err(Into::into)
    });
    found.with_context(|| item.path.display().to_string())
}

fn result(item: &Opened, found: &ExpectedTrace, is_recorded: bool) -> TraceResult {
    let expected = item.trace.expected.as_ref().filter(|_| !is_recorded);
    let difference = expected.and_then(|expected| conformance::difference(found, expected));
    let name = item.path.file_stem().unwrap_or_default();
    TraceResult {
        name: name.to_string_lossy().into_owned(),
        verdict: Verdict::of(difference.is_none()),
        n_tokens: found.tokens.len(),
        n_drafted: found.n_drafted,
        n_accepted: found.n_accepted,
        difference,
    }
}

/// Maximum length of a value on one line of a trace.
const MAX_LINE: usize = 120;

/// Formats a trace.
fn to_json(trace: &ConformanceTrace) -> Vec<u8> {
    let compact = serde_json::to_string(trace).expect("numbers and strings become JSON");
    let value = serde_json::from_str(&compact).expect("was just written");
    let mut text = String::new();
    write_value(&mut text, &value, 0);
    text.push('\n');
    text.into_bytes()
}

/// Writes a value: on one line if it is short, so that a difference of two traces is readable.
fn write_value(text: &mut String, value: &Value, indent: usize) {
    let compact = value.to_string();
    let (brackets, items): (_, Vec<(String, &Value)>) = match value {
        Value::Object(fields) if compact.len() > MAX_LINE => {
            let items = fields.iter();
            let items = items.map(|(key, value)| (format!("{}: ", json!(key)), value));
            (['{', '}'], items.collect())
        }
        Value::Array(values)
            if compact.len() > MAX_LINE && !values.iter().all(Value::is_number) =>
        {
            let items = values.iter().map(|value| (String::new(), value));
            (['[', ']'], items.collect())
        }
        _ => return text.push_str(&compact),
    };
    text.push(brackets[0]);
    for (i, (key, value)) in items.into_iter().enumerate() {
        text.push_str(if i > 0 { ",\n" } else { "\n" });
        text.extend(iter::repeat_n(' ', indent + 2));
        text.push_str(&key);
        write_value(text, value, indent + 2);
    }
    text.push('\n');
    text.extend(iter::repeat_n(' ', indent));
    text.push(brackets[1]);
}

/// Text output of the report: a line for each trace.
struct Text<'a>(&'a ConformanceReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let traces = &self.0.traces;
        let width = traces.iter().map(|trace| trace.name.len()).max();
        let width = width.unwrap_or_default();
        for trace in traces {
            match &trace.difference {
                None => writeln!(
                    f,
                    "pass  {:width$}  {} tokens, drafted {}, accepted {}",
                    trace.name, trace.n_tokens, trace.n_drafted, trace.n_accepted
                )?,
                Some(difference) => writeln!(f, "FAIL  {:width$}  {difference}", trace.name)?,
            }
        }
        let failed = |trace: &&TraceResult| trace.verdict == Verdict::Fail;
        let n_passed = traces.len() - traces.iter().filter(failed).count();
        write!(
            f,
            "{n_passed} of {} traces are equal on {}",
            traces.len(),
            self.0.backend
        )
    }
}
