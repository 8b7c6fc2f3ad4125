//! Files given on the command line, and files of checkpoint folders.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cli::embedded::{self, Program};
use convert::{ConvertConfig, MtpMode, OutType};
use runner::speculate::lookup::Lookup;
use schemas::gguf::{Output, WriteConfig, write};
use schemas::vocab::{D2T, VocabMap};
use tempfile::TempDir;
use verify::divergence::logits_file::LogitsReader;
use verify::prompts;

use crate::Run;

/// Vocabulary size for lookup files.
const N_VOCAB: usize = 1000;

/// A file that has the input of each run, in a folder of its own.
pub(crate) struct InputFile {
    path: PathBuf,
    _folder: TempDir,
}

impl InputFile {
    pub(crate) fn new() -> InputFile {
        let folder = tempfile::tempdir().expect("the system has room for a folder");
        InputFile {
            path: folder.path().join("file"),
            _folder: folder,
        }
    }

    /// Writes an input, and returns the path of the file.
    pub(crate) fn with(&self, bytes: &[u8]) -> &Path {
        fs::write(&self.path, bytes).expect("the folder can be written");
        &self.path
    }
}

/// Passes each input as a file.
fn in_a_file(read: impl Fn(&Path) -> bool + 'static) -> Run {
    let file = InputFile::new();
    Box::new(move |bytes| read(file.with(bytes)))
}

/// Returns the folder of a checkpoint.
fn reference(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference");
    folder.join(name)
}

/// Plans conversions of a checkpoint with one file replaced, and reads the planned tensors.
fn convert(name: &str, replaced: &'static str) -> Run {
    let folder = tempfile::tempdir().expect("the system has room for a folder");
    let files = fs::read_dir(reference(name)).expect("the checkpoint is there");
    for file in files.flatten() {
        fs::copy(file.path(), folder.path().join(file.file_name())).expect("it can be copied");
    }
    Box::new(move |bytes| {
        fs::write(folder.path().join(replaced), bytes).expect("the folder can be written");
        let config = ConvertConfig {
            checkpoint: folder.path().to_owned(),
            remote: None,
            outtype: OutType::Auto,
            mtp: MtpMode::Inline,
            clusters: true,
            tokenizer_from: None,
            target: None,
        };
        convert::plan(&config).is_ok_and(|converted| {
            let mut read = converted
                .plan
                .tensors
                .iter()
                .map(|tensor| tensor.read_all());
            read.all(|bytes| bytes.is_ok())
        })
    })
}

/// Runs a command of `specconv` that writes nothing; what it prints is not shown. True if it could run.
fn specconv(args: &[&OsStr]) -> bool {
    let args = [&[OsStr::new("specconv")], args].concat();
    let args = args.into_iter().map(OsStr::to_owned).collect();
    embedded::run(
        Program::Specconv,
        args,
        Box::new(|_, _| ()),
        &Arc::default(),
    )
    .is_ok()
}

pub(crate) fn gguf() -> Run {
    Box::new(|bytes| schemas::gguf::check(bytes).is_ok())
}

/// Fuzzes the header of a safetensors file, which the data of the checkpoint follows.
pub(crate) fn safetensors() -> Run {
    let (checkpoint, name) = ("llama-spm", "model.safetensors");
    let model = fs::read(reference(checkpoint).join(name)).expect("the file is there");
    let (n_header, rest) = model.split_first_chunk().expect("a length");
    let data = rest[u64::from_le_bytes(*n_header) as usize..].to_vec();
    let run = convert(checkpoint, name);
    Box::new(move |header| run(&[header, &data].concat()))
}

pub(crate) fn config() -> Run {
    convert("llama-spm", "config.json")
}

pub(crate) fn tokenizer() -> Run {
    convert("llama", "tokenizer.json")
}

pub(crate) fn sentencepiece() -> Run {
    convert("llama-spm", "tokenizer.model")
}

pub(crate) fn imatrix() -> Run {
    in_a_file(|path| quantize::Imatrix::open(path).is_ok())
}

/// Fuzzes recipes and prompt files, which are both text.
pub(crate) fn recipe() -> Run {
    in_a_file(|path| {
        let prompts = fs::read_to_string(path)
            .is_ok_and(|text| prompts::parse(Path::new("prompts.jsonl"), &text).is_ok());
        // It prints the parsed recipe and does nothing else.
        let flags = ["quantize", "--print-recipe", "--recipe"].map(OsStr::new);
        specconv(&[&flags[..], &[path.as_os_str()]].concat()) || prompts
    })
}

pub(crate) fn lookup() -> Run {
    in_a_file(|path| Lookup::read(path, N_VOCAB).is_ok())
}

pub(crate) fn logits() -> Run {
    in_a_file(|path| LogitsReader::open(path).is_ok())
}

pub(crate) fn vocab_map() -> Run {
    in_a_file(|path| schemas::gguf::open(path).is_ok_and(|plan| VocabMap::from_plan(&plan).is_ok()))
}

/// Fuzzes files of embeddings, NumPy or safetensors, which a prompt names.
pub(crate) fn embeddings() -> Run {
    in_a_file(|path| {
        let line = r#"{"id": "a", "parts": [{"embeddings": "file"}]}"#;
        prompts::parse(&path.with_file_name("prompts.jsonl"), line).is_ok()
    })
}

/// Fuzzes draft-to-target maps: NumPy, JSON and text are recognized by their contents, safetensors by the
/// name of the file.
pub(crate) fn draft_map() -> Run {
    let folder = tempfile::tempdir().expect("the system has room for a folder");
    let draft = folder.path().join("draft.gguf");
    write_draft(&draft);
    let check = move |name: &str, bytes: &[u8]| {
        let map = folder.path().join(name);
        fs::write(&map, bytes).expect("the folder can be written");
        let out = folder.path().join("mapped.gguf");
        let [command, dry_run] = ["graft-vocab", "--dry-run"].map(OsStr::new);
        let [draft_flag, map_flag, out_flag] = ["--draft", "--map", "-o"].map(OsStr::new);
        let files = [
            draft_flag,
            draft.as_os_str(),
            map_flag,
            map.as_os_str(),
            out_flag,
            out.as_os_str(),
        ];
        specconv(&[&[command, dry_run], &files[..]].concat())
    };
    Box::new(move |bytes| check("map", bytes) | check("map.safetensors", bytes))
}

/// Writes a draft without a vocabulary map, whose output has a row for each of a hundred tokens.
fn write_draft(path: &Path) {
    let target = fixtures::all().next().expect("there are architectures");
    let [mut plan, _] = fixtures::eagle3(&target);
    plan.tensors.retain(|tensor| tensor.name != D2T);
    let output = Output { plan: &plan, path };
    write(&[output], &WriteConfig::new()).expect("the folder can be written");
}
