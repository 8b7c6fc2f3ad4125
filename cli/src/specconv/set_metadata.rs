//! `specconv set-metadata` and `set-chat-template`: change the keys of a file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, ensure};
use schemas::gguf::{self, Editor, Metadata, Plan, RESERVED, Value};
use schemas::input;
use schemas::outfile::Existing;
use schemas::report::{FileReport, MetadataReport, SCHEMA_VERSION, Verdict};

use super::input::Inputs;
use super::write::{self, FileLine, Model};
use crate::interrupt;
use crate::output::{self, Format};
use crate::report_file::OverwriteArgs;

/// Output of the change.
#[derive(Debug, clap::Args)]
struct Target {
    /// File to write [default: edit the input]
    ///
    /// The input is edited in place if the keys fit in its header. Otherwise it is replaced after the new file is
    /// complete and on disk
    #[arg(short, long, value_name = "OUT.gguf")]
    outfile: Option<PathBuf>,
    /// Bytes to reserve in the header of a new file for later edits, such as 64K
    #[arg(long, value_name = "BYTES", value_parser = write::parse_reserve)]
    reserve_header: Option<u64>,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Set or remove keys of a GGUF file
///
/// Tensors are not changed. An edit that fits in the header (see --reserve-header) is made in place;
/// otherwise the kernel copies the data to a new file. Existing keys keep their position, new keys are
/// appended. For a split model, give the first shard, which has the keys.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File to change
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Keys to set; TYPE is u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bool or str
    #[arg(value_name = "KEY=TYPE:VALUE")]
    set: Vec<Assignment>,
    /// Remove a key; may be given several times
    #[arg(long, value_name = "KEY")]
    remove: Vec<String>,
    #[command(flatten)]
    target: Target,
}

/// Set the chat template of a GGUF file
#[derive(Debug, clap::Args)]
pub(super) struct TemplateArgs {
    /// File to change
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Chat template file (Jinja)
    #[arg(value_name = "TEMPLATE_FILE")]
    template: PathBuf,
    #[command(flatten)]
    target: Target,
}

/// Key of the chat template.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// A key and its new value.
#[derive(Clone, Debug, PartialEq)]
struct Assignment {
    key: String,
    value: Value,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Assignment, String> {
        let parts = text.split_once('=');
        let parts = parts.and_then(|(key, value)| Some((key, value.split_once(':')?)));
        let Some((key, (kind, value))) = parts.filter(|(key, _)| !key.is_empty()) else {
            return Err("expected KEY=TYPE:VALUE, such as general.name=str:Name".to_owned());
        };
        fn number<T: FromStr + Into<Value>>(text: &str) -> Option<Value> {
            text.parse().ok().map(T::into)
        }
        let parsed = match kind {
            "u8" => number::<u8>(value),
            "i8" => number::<i8>(value),
            "u16" => number::<u16>(value),
            "i16" => number::<i16>(value),
            "u32" => number::<u32>(value),
            "i32" => number::<i32>(value),
            "u64" => number::<u64>(value),
            "i64" => number::<i64>(value),
            "f32" => number::<f32>(value),
            "f64" => number::<f64>(value),
            "bool" => number::<bool>(value),
            "str" => Some(value.into()),
            _ => {
                return Err(format!(
                    "type {kind:?}, expected u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bool \
                     or str"
                ));
            }
        };
        Ok(Assignment {
            key: key.to_owned(),
            value: parsed.ok_or_else(|| format!("{value:?} is not of type {kind}"))?,
        })
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    ensure!(
        !args.set.is_empty() || !args.remove.is_empty(),
        "nothing to change, expected KEY=TYPE:VALUE or --remove KEY"
    );
    change(&args.input, &[], &args.target, |metadata| {
        for key in &args.remove {
            ensure!(metadata.remove(key).is_some(), "key {key} does not exist");
        }
        for Assignment { key, value } in &args.set {
            set(metadata, key, value);
        }
        Ok(())
    })
}

pub(super) fn run_template(args: &TemplateArgs) -> anyhow::Result<Verdict> {
    let path = &args.template;
    let template = input::read_text(path, input::Kind::Stream, input::MAX_HANDWRITTEN);
    let template = template.with_context(|| path.display().to_string())?;
    ensure!(
        !template.trim().is_empty(),
        "{}: is empty, expected a template",
        path.display()
    );
    change(&args.input, &[path], &args.target, |metadata| {
        set(metadata, CHAT_TEMPLATE, &template.as_str().into());
        Ok(())
    })
}

/// Sets a key. Readers are strict about types, so a changed type is reported.
fn set(metadata: &mut Metadata, key: &str, value: &Value) {
    if let Some(before) = metadata.get(key).map(Value::value_type)
        && before != value.value_type()
    {
        let now = value.value_type();
        output::note(&format_args!(
            "key {key}: type changed from {before} to {now}"
        ));
    }
    metadata.set(key, value.clone());
}

/// Edits the keys of a file and prints the report. `others` are further files that the command reads.
fn change(
    input: &Path,
    others: &[&Path],
    target: &Target,
    apply: impl FnOnce(&mut Metadata) -> anyhow::Result<()>,
) -> anyhow::Result<Verdict> {
    let start = Instant::now();
    // Held until the change is published; otherwise a concurrent edit by another process would be lost.
    let editor = lock(input)?;
    let before = gguf::open_one(input)?;
    let mut plan = before.clone();
    apply(&mut plan.metadata).with_context(|| input.display().to_string())?;
    let path = match &target.outfile {
        None => input,
        Some(path) => {
            let mut inputs = Inputs::default();
            inputs.add(input);
            others.iter().for_each(|path| inputs.add(path));
            let existing = target.overwrite.existing();
            inputs.output_names(existing).claim_file(path)?;
            path
        }
    };
    if let Some(n_bytes) = target.reserve_header {
        gguf::reserve(&mut plan, n_bytes)?;
    }
    let may_edit_in_place = target.outfile.is_none() && target.reserve_header.is_none();
    let (in_place, output) = publish(editor, &before, &mut plan, path, may_edit_in_place)?;
    let (before, after) = (&before.metadata, &plan.metadata);
    let is_set = |key: &&str| *key != RESERVED && after.get(key) != before.get(key);
    let is_removed = |key: &&str| !after.contains(key);
    let keys = |metadata: &Metadata, is_listed: &dyn Fn(&&str) -> bool| -> Vec<String> {
        let keys = metadata.iter().map(|(key, _)| key).filter(is_listed);
        keys.map(str::to_owned).collect()
    };
    let report = MetadataReport {
        schema_version: SCHEMA_VERSION,
        input: input.display().to_string(),
        output,
        set: keys(after, &is_set),
        removed: keys(before, &is_removed),
        in_place,
        elapsed_ms: start.elapsed().as_millis() as u64,
    };
    output::result(Format::of(target.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// Changes keys of a file, in place if they fit in its header.
///
/// # Errors
/// The file cannot be read or written.
pub(crate) fn set_keys(path: &Path, apply: impl FnOnce(&mut Metadata)) -> anyhow::Result<()> {
    let editor = lock(path)?;
    let before = gguf::open_one(path)?;
    let mut plan = before.clone();
    apply(&mut plan.metadata);
    publish(editor, &before, &mut plan, path, true).map(drop)
}

/// Writes a file with changed keys; returns whether it was edited in place, and its description.
fn publish(
    editor: Editor,
    before: &Plan,
    plan: &mut Plan,
    path: &Path,
    may_edit_in_place: bool,
) -> anyhow::Result<(bool, FileReport)> {
    let in_place =
        may_edit_in_place && interrupt::while_writing(|_| Ok(editor.edit(before, plan)?))?;
    let model = [Model::one(plan.clone(), path)];
    let [output] = if in_place {
        [model[0].as_written()?]
    } else {
        // The open file stays readable after another file has taken its name.
        write::write(&model, 0, Existing::Replace)?
    };
    drop(editor);
    Ok((in_place, output))
}

/// Locks a file for an edit. An interrupted edit of an earlier process is rolled back.
fn lock(input: &Path) -> anyhow::Result<Editor> {
    let path = input.display();
    let on_wait = || {
        output::note(&format_args!(
            "{path}: waiting for another process to finish its edit"
        ))
    };
    let editor = Editor::open(input, &on_wait)?;
    if editor.has_rolled_back() {
        output::note(&format_args!("{path}: rolled back an interrupted edit"));
    }
    Ok(editor)
}

/// Text output of the report.
struct Text<'a>(&'a MetadataReport);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let file = &r.output;
        writeln!(
            f,
            "{}",
            FileLine {
                file,
                written: true
            }
        )?;
        let in_place = if r.in_place { ", in place" } else { "" };
        write!(
            f,
            "set {} keys, removed {}{in_place}",
            r.set.len(),
            r.removed.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_have_a_type() {
        let value = |text: &str| text.parse::<Assignment>().map(|a| a.value);
        assert_eq!(value("a.b=u32:7"), Ok(Value::U32(7)));
        assert_eq!(value("a.b=bool:true"), Ok(Value::Bool(true)));
        assert_eq!(value("a.b=str:x=y:z"), Ok("x=y:z".into()));
        assert_eq!(value("a.b=str:"), Ok("".into()));
        assert_eq!(
            value("a.b=u8:256"),
            Err("\"256\" is not of type u8".to_owned())
        );
        assert!(
            value("a.b=int:1")
                .unwrap_err()
                .starts_with("type \"int\", expected")
        );
        for text in ["a.b", "a.b=u32", "=u32:1"] {
            assert_eq!(
                value(text),
                Err("expected KEY=TYPE:VALUE, such as general.name=str:Name".to_owned()),
                "{text}"
            );
        }
    }
}
