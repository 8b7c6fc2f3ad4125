//! The `hint:` line after an error: the command or flag that helps. Libraries state the fault; this
//! module alone knows the commands, so that every command gives the same advice.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use convert::Error as ConvertError;
use graft::Error as GraftError;
use hub::{Error as HubError, Problem};
use quantize::Error as QuantizeError;
use runner::error::{Error as RunError, ModelError};
use schemas::arch::HparamsError;
use schemas::gguf::{Malformed, ReadError, ReadErrorKind, WriteError};
use schemas::outfile::{OutfileError, folder_of};
use verify::Error as VerifyError;
use verify::prompts::PromptError;

use crate::embedded;

/// Shortest chunk of tokens that is worth suggesting.
const MIN_CHUNK: usize = 32;

/// An error of the command line that knows its own hint.
#[derive(Debug)]
pub(crate) struct Hinted {
    message: String,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

impl Hinted {
    /// An error and the advice that follows it.
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Hinted {
        Hinted {
            message: message.into(),
            hint: hint.into(),
        }
    }
}

/// Returns the advice for an error, from the first of its causes that has one.
pub(crate) fn of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(of_cause)
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = cause.downcast_ref::<Hinted>() {
        return Some(error.hint.clone());
    }
    if let Some(error) = cause.downcast_ref::<ConvertError>() {
        return of_conversion(error);
    }
    if let Some(error) = cause.downcast_ref::<ReadError>() {
        return of_model_file(error);
    }
    if let Some(WriteError::Outfile(error)) = cause.downcast_ref::<WriteError>() {
        return of_output(error);
    }
    if let Some(error) = cause.downcast_ref::<OutfileError>() {
        return of_output(error);
    }
    match cause.downcast_ref::<QuantizeError>() {
        Some(QuantizeError::Requantize { .. }) => {
            return text("pass --allow-requantize, or quantize the 16- or 32-bit original");
        }
        Some(QuantizeError::NeedsImatrix { .. }) => {
            return text(
                "\"specrun imatrix MODEL.gguf -f TEXT.txt --nextn -o imatrix.gguf\" collects one for --imatrix; \
                 --tensor-type and --mtp-type give such tensors another type",
            );
        }
        _ => {}
    }
    if let Some(error) = cause.downcast_ref::<GraftError>() {
        return of_graft(error);
    }
    if let Some(error) = cause.downcast_ref::<HubError>() {
        return of_hub(error);
    }
    match cause.downcast_ref::<VerifyError>() {
        Some(VerifyError::Run(error)) => return of_run(error),
        Some(VerifyError::Prompts(error)) => return of_prompts(error),
        Some(VerifyError::ShortText { n_tokens, .. }) => {
            return Some(match n_tokens {
                MIN_CHUNK.. => format!("give a longer text, or pass -c {n_tokens}"),
                _ => "give a longer text".to_owned(),
            });
        }
        _ => {}
    }
    if let Some(error) = cause.downcast_ref::<RunError>() {
        return of_run(error);
    }
    if let Some(error) = cause.downcast_ref::<PromptError>() {
        return of_prompts(error);
    }
    None
}

fn text(hint: &str) -> Option<String> {
    Some(hint.to_owned())
}

fn of_conversion(error: &ConvertError) -> Option<String> {
    match error {
        ConvertError::NoCheckpoint { path, .. } => of_missing(path),
        ConvertError::NotAFolder { path } if !is_gguf(path) => {
            let folder = folder_of(path).display();
            Some(format!(
                "name the folder of the checkpoint: \"specconv convert {folder}\""
            ))
        }
        ConvertError::NotAFolder { path } => Some(format!(
            "a GGUF file is already converted; \"specconv quantize {} OUT.gguf Q4_K_M\" changes its types",
            path.display()
        )),
        ConvertError::Adapter { base, .. } => Some(format!(
            "merge it into {} first (PEFT: merge_and_unload, then save_pretrained), and convert the result",
            base.as_deref().unwrap_or("its base model")
        )),
        ConvertError::NoTokenizer { .. } => text(
            "copy the tokenizer files of the original model into the folder, or pass \
             --tokenizer-from with a folder or hf://org/name that has them",
        ),
        ConvertError::UnsupportedArch { found, .. } if is_vision(found) => text(
            "this is a vision model; of these, the text part of Qwen3_5 and Gemma3 classes is converted. \
             llama.cpp's convert_hf_to_gguf.py writes the model and its mmproj file",
        ),
        ConvertError::UnsupportedArch { .. } => text(
            "convert it with llama.cpp's convert_hf_to_gguf.py; quantize, split, hash and set-metadata \
             work on the result",
        ),
        ConvertError::UnknownArch { .. } => text(
            "a newer llama.cpp may have it in convert_hf_to_gguf.py; quantize, split, hash and set-metadata \
             work on the result",
        ),
        _ => None,
    }
}

fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "gguf")
}

/// Checks whether a class is that of a model that also reads images.
fn is_vision(class: &str) -> bool {
    class.ends_with("ForConditionalGeneration") && !class.starts_with("T5") || class.contains("VL")
}

/// Advice for a path that does not exist.
fn of_missing(path: &Path) -> Option<String> {
    if path.is_dir() {
        return of_folder(path);
    }
    if path.exists() {
        return None;
    }
    if looks_like_repository(path) {
        return Some(format!(
            "for a model on the Hub write hf://{}",
            path.display()
        ));
    }
    if let Some(model) = model_after(path) {
        return Some(format!(
            "the model comes before the text: \"specrun generate {model} TEXT\""
        ));
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Some(format!("folder {} does not exist", folder.display()));
    }
    if env::var_os("LLAMA_ARG_MODEL").is_some_and(|model| !model.is_empty() && model != path) {
        return text("LLAMA_ARG_MODEL already names a model; a text is given with -p");
    }
    let name = path.file_name()?.to_str()?;
    let names = models_in(folder);
    // The extension would make all names alike.
    let stems = names.iter().map(|name| name.trim_end_matches(".gguf"));
    let nearest = quantize::nearest(name.trim_end_matches(".gguf"), stems);
    match (nearest, names.as_slice()) {
        (Some(nearest), _) => Some(format!(
            "did you mean {}?",
            path.with_file_name(format!("{nearest}.gguf")).display()
        )),
        (None, []) => text("\"specconv convert hf://org/name -o model.gguf\" makes a model file"),
        (None, names) => Some(format!("the folder has {}", listed(names))),
    }
}

/// Returns the model file that the command line names after `path`.
fn model_after(path: &Path) -> Option<String> {
    let args = embedded::args().unwrap_or_else(|| env::args_os().collect());
    let at = args.iter().position(|arg| *arg == path)?;
    let next = args.get(at + 1)?.to_str()?;
    let is_model = is_gguf(Path::new(next)) && Path::new(next).is_file() && !is_gguf(path);
    is_model.then(|| next.to_owned())
}

/// Checks whether a path has the form of a Hub id: `org/name`.
fn looks_like_repository(path: &Path) -> bool {
    let Some(text) = path.to_str() else {
        return false;
    };
    let is_part = |part: &str| {
        let mut chars = part.chars();
        chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
            && chars.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let mut parts = text.split('/');
    let (org, name) = (parts.next(), parts.next());
    let is_two = org.is_some_and(is_part) && name.is_some_and(is_part) && parts.next().is_none();
    is_two && !text.ends_with(".gguf") && !folder_of(path).is_dir()
}

/// Advice for a folder where a GGUF file belongs.
fn of_folder(folder: &Path) -> Option<String> {
    let shown = folder.display();
    if folder.join("config.json").exists() {
        return Some(format!(
            "the folder is a checkpoint: run \"specconv convert {shown} -o model.gguf\" first"
        ));
    }
    match models_in(folder).as_slice() {
        [] => text("expected a GGUF file, or a checkpoint folder with a config.json"),
        names => Some(format!(
            "name a file of the folder: it has {}",
            listed(names)
        )),
    }
}

/// Returns the sorted names of the GGUF files in a folder.
fn models_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_model = |name: &String| name.ends_with(".gguf") && !name.starts_with('.');
    let mut names: Vec<String> = names.filter(is_model).collect();
    names.sort();
    names
}

fn listed(names: &[String]) -> String {
    const MAX: usize = 5;
    let first = names[..names.len().min(MAX)].join(", ");
    match names.len().saturating_sub(MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn of_model_file(error: &ReadError) -> Option<String> {
    match &error.kind {
        ReadErrorKind::Io(_) => of_missing(&error.path),
        ReadErrorKind::Malformed(Malformed::Magic { .. }) => {
            let is_weights = error.path.extension().is_some_and(|e| e == "safetensors");
            match is_weights {
                true => Some(format!(
                    "a checkpoint is given by its folder: \"specconv convert {}\"",
                    folder_of(&error.path).display()
                )),
                false => text("expected a GGUF file"),
            }
        }
        _ => None,
    }
}

fn of_output(error: &OutfileError) -> Option<String> {
    match error {
        OutfileError::NoFolder { path } => {
            let folder = folder_of(path);
            Some(format!("create it: mkdir -p {}", folder.display()))
        }
        OutfileError::Space { .. } => text("free some space, or write to another disk"),
        OutfileError::Io { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
            let folder = folder_of(path).display();
            Some(format!(
                "files cannot be created in {folder}: write to another folder"
            ))
        }
        OutfileError::Appeared { .. } => {
            text("if two runs write the same file, give each its own name")
        }
        _ => None,
    }
}

fn of_graft(error: &GraftError) -> Option<String> {
    match error {
        GraftError::ArchWithoutHead { .. } => text(
            "draft for this model with an EAGLE-3 draft or a small model (specrun generate -md \
             DRAFT.gguf), or with n-grams (--spec-type ngram-mod)",
        ),
        _ => None,
    }
}

fn of_hub(error: &HubError) -> Option<String> {
    match &error.problem {
        Problem::GaveUp { last, .. } => match &**last {
            Problem::UnknownHost { .. } => text(
                "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what was downloaded before",
            ),
            _ => None,
        },
        Problem::NoClient => {
            text("install it with all features: cargo install --locked --path cli --features full")
        }
        _ => None,
    }
}

fn of_run(error: &RunError) -> Option<String> {
    match error {
        RunError::Read(error) => of_model_file(error),
        RunError::EmptyPrompt { .. } => {
            text("the prompt is empty; --tokens ID starts with a special token")
        }
        RunError::UnknownSpeculator { nearest, .. } => {
            nearest.map(|name| format!("did you mean {name}?"))
        }
        RunError::DraftMismatch { what, .. } if is_vocabulary(what) => text(
            "map the vocabularies: \"specconv map-vocab --target MODEL.gguf --draft DRAFT.gguf -o \
             map.gguf\", then pass --spec-vocab-map map.gguf",
        ),
        RunError::Model { source, .. } => match source {
            ModelError::NoMtpHead { .. } => text(
                "\"specconv graft-mtp\" adds a head from another file of the model; --spec-type \
                 ngram-mod needs none",
            ),
            ModelError::Hparams(HparamsError::UnknownArch { found }) if found == "clip" => text(
                "this is the vision part of a model (mmproj); give the file of the language model",
            ),
            ModelError::Hparams(
                HparamsError::UnknownArch { .. } | HparamsError::OnlyConverted { .. },
            ) => text(
                "llama.cpp may run it; quantize, split, hash and set-metadata work on any architecture",
            ),
            _ => None,
        },
        _ => None,
    }
}

fn is_vocabulary(what: &str) -> bool {
    ["vocabulary size", "the first token that differs"].contains(&what)
}

fn of_prompts(error: &PromptError) -> Option<String> {
    match error {
        PromptError::Line { line: 1, .. } => text(
            "expected JSON lines such as {\"id\": \"a\", \"prompt\": \"text\"}; \"specrun generate -f\" \
             also takes plain text",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_ids_are_distinguished_from_paths() {
        let cases = [
            ("Qwen/Qwen3-0.6B", true),
            ("no-such-org/m.gguf", false),
            ("a/b/c", false),
            ("model", false),
            ("./model", false),
            ("src/lib", false),
        ];
        for (text, expected) in cases {
            assert_eq!(looks_like_repository(Path::new(text)), expected, "{text}");
        }
    }
}
