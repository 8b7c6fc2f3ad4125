//! Files given on the command line, and files of checkpoint folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::Parser;
use cli::specconv;
use convert::{ConvertConfig, MtpMode, OutType};
use runner::speculate::lookup::Lookup;
use schemas::gguf::{Output, WriteConfig, write};
use schemas::vocab::{D2T, VocabMap};
use tempfile::TempDir;
use verify::divergence::logits_file::LogitsReader;
use verify::prompts;

/// Vocabulary size for lookup files.
const N_VOCAB: usize = 1000;

/// Returns a folder of this process with a copy of a small checkpoint.
fn checkpoint(name: &str) -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("the system has room for a folder");
        let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference");
        let files = fs::read_dir(reference.join(name)).expect("the checkpoint is there");
        for file in files.flatten() {
            fs::copy(file.path(), folder.path().join(file.file_name())).expect("it can be copied");
        }
        folder
    });
    folder.path()
}

/// Writes the bytes to a file of this process.
pub(crate) fn file(bytes: &[u8]) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("the system has room"));
    let path = folder.path().join("file");
    fs::write(&path, bytes).expect("the folder can be written");
    path
}

/// Plans a conversion of the checkpoint with one file replaced, and reads the planned tensors.
fn convert(name: &str, replaced: &str, bytes: &[u8]) {
    let folder = checkpoint(name);
    fs::write(folder.join(replaced), bytes).expect("the folder can be written");
    let config = ConvertConfig {
        checkpoint: folder.to_owned(),
        remote: None,
        outtype: OutType::Auto,
        mtp: MtpMode::Inline,
        clusters: true,
        tokenizer_from: None,
        target: None,
    };
    if let Ok(converted) = convert::plan(&config) {
        for tensor in &converted.plan.tensors {
            let _ = tensor.read_all();
        }
    }
}

pub(crate) fn gguf(bytes: &[u8]) {
    let _ = schemas::gguf::check(bytes);
}

/// Fuzzes the header of a safetensors file.
pub(crate) fn safetensors(bytes: &[u8]) {
    convert("llama-spm", "model.safetensors", bytes);
}

pub(crate) fn config(bytes: &[u8]) {
    convert("llama-spm", "config.json", bytes);
}

pub(crate) fn tokenizer(bytes: &[u8]) {
    convert("llama", "tokenizer.json", bytes);
}

pub(crate) fn sentencepiece(bytes: &[u8]) {
    convert("llama-spm", "tokenizer.model", bytes);
}

pub(crate) fn imatrix(bytes: &[u8]) {
    let _ = quantize::Imatrix::open(&file(bytes));
}

/// Fuzzes recipes and prompt files, which are both text.
pub(crate) fn recipe(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = prompts::parse(Path::new("prompts.jsonl"), text);
    }
    let path = file(bytes);
    // `--print-recipe` prints the parsed recipe and does nothing else.
    let arguments = ["specconv", "quantize", "--print-recipe", "--recipe"].map(PathBuf::from);
    let command = specconv::Cli::try_parse_from(arguments.into_iter().chain([path]));
    let _ = specconv::run(&command.expect("the arguments are valid"));
}

pub(crate) fn lookup(bytes: &[u8]) {
    let _ = Lookup::read(&file(bytes), N_VOCAB);
}

pub(crate) fn logits(bytes: &[u8]) {
    let _ = LogitsReader::open(&file(bytes));
}

pub(crate) fn vocab_map(bytes: &[u8]) {
    if let Ok(plan) = schemas::gguf::open(&file(bytes)) {
        let _ = VocabMap::from_plan(&plan);
    }
}

/// Fuzzes files of embeddings, NumPy or safetensors, which a prompt names.
pub(crate) fn embeddings(bytes: &[u8]) {
    let prompts = file(bytes).with_file_name("prompts.jsonl");
    let line = r#"{"id": "a", "parts": [{"embeddings": "file"}]}"#;
    let _ = prompts::parse(&prompts, line);
}

/// Returns a draft without a vocabulary map, whose output has a row for each of a hundred tokens.
fn draft() -> &'static Path {
    static DRAFT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = DRAFT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("the system has room for a folder");
        let target = fixtures::all().next().expect("there are architectures");
        let [mut plan, _] = fixtures::eagle3(&target);
        plan.tensors.retain(|tensor| tensor.name != D2T);
        let path = folder.path().join("draft.gguf");
        let output = Output {
            plan: &plan,
            path: &path,
        };
        write(&[output], &WriteConfig::new()).expect("the folder can be written");
        (folder, path)
    });
    path
}

/// Fuzzes draft-to-target maps: NumPy, JSON and text are recognized by their contents, safetensors by the
/// name of the file.
pub(crate) fn draft_map(bytes: &[u8]) {
    let path = file(bytes);
    let renamed = path.with_file_name("map.safetensors");
    fs::write(&renamed, bytes).expect("the folder can be written");
    for map in [path, renamed] {
        let out = map.with_file_name("mapped.gguf");
        let arguments = ["specconv", "graft-vocab", "--dry-run", "--draft"].map(PathBuf::from);
        let arguments = arguments.into_iter().chain([draft().to_owned()]);
        let arguments = arguments.chain(["--map".into(), map, "-o".into(), out]);
        let command = specconv::Cli::try_parse_from(arguments);
        let _ = specconv::run(&command.expect("the arguments are valid"));
    }
}
