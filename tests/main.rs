//! End-to-end tests: each creates its files, runs the real binary and checks the output.

mod util;

/// Drafted and accepted tokens, compared with llama.cpp.
mod acceptance;
/// Acceptance predicted from drafts at every position.
mod agreement;
/// The public API of the library crates.
mod api;
/// Assistants: reference logits and counts, and clusters of tokens.
mod assistant;
/// Element types of the KV cache and their effects.
mod caches;
/// Chains of speculators, at any number of sequences.
mod chains;
/// Exit codes, help, output names, JSON against its schemas.
mod cli;
/// Traces of every architecture and speculator, for other engines.
mod conformance;
/// Converted checkpoints equal the reference converter's files.
mod convert;
/// Whole models on emulated CUDA devices, and handling of driver errors.
mod cuda;
/// Damaged files and the checks that detect the damage.
mod damage;
/// Block drafts: counts of the reference.
mod dflash;
/// Divergence of quantized models from their base.
mod divergence;
/// Lookup files and vocabulary maps.
mod drafters;
/// EAGLE-3 drafts: reference logits and counts.
mod eagle3;
/// Heads are split off, grafted back, and refused if they do not fit.
mod graft;
/// Hashes equal those of the reference tool.
mod hash;
/// Broken input gives an error with its location, never a panic.
mod hostile;
/// Checkpoints on the Hub, downloaded only as far as needed.
mod hub;
/// Importance matrices, compared with the reference tool's.
mod imatrix;
/// Inputs of specrun: flags, variables, models on the Hub, conversations.
mod inputs;
/// Output of `specconv inspect`.
mod inspect;
/// Few threads, little memory, files that change while they are read.
mod limits;
/// Lock files, and models that are made again from them.
mod lock;
/// Frequent mistakes and their messages; existing files.
mod mistakes;
/// Mock of the Hub on loopback.
#[allow(dead_code, reason = "the tests of the client need more of it")]
#[path = "../hub/tests/mock/mod.rs"]
mod mock;
/// Output names, publication, signals and stray files, for both programs.
mod outputs;
/// Split models and interrupted runs.
mod parts;
/// Results of a verification in the keys of a file.
mod passport;
/// The action, its annotations, and the hooks.
mod pipelines;
/// Memory of a run.
mod plan;
/// Model cards, uploads, and mixes chosen by measurement.
mod publish;
/// Quantized models equal the reference quantizer's files.
mod quantize;
/// The commands of the documents run as written.
mod readme;
/// Running models: reference logits and tokens, verified speculation, detection of dead heads.
mod run;
/// One command on many machines.
mod scale;
/// The HTTP server: protocols, identical texts, refused requests, shutdown.
mod serve;
/// Changing keys in a finished file.
mod set_metadata;
/// Layers of modules, and the files of an architecture.
mod structure;
/// The tables of README.md and the lists of the code.
mod supported;
/// Acceptance and speed over context length, temperature and task.
mod surface;
/// The rules of this repository.
mod tidy;
/// `specrun verify`: baselines, decoding settings, output formats.
mod verify;
/// Draft vocabularies: reduced, mapped, added and removed.
mod vocab;
