//! Whole-command tests: each makes its files, runs the real binary, and looks at what comes out.

mod util;

/// What is drafted and accepted, beside llama.cpp.
mod acceptance;
/// Element types of caches, and what they change.
mod caches;
/// Chains of speculators, at any number of sequences.
mod chains;
/// Exit codes, help, output names, JSON against its schemas.
mod cli;
/// Checkpoints become the reference converter's files.
mod convert;
/// Whole models on emulated CUDA devices, and what becomes of their errors.
mod cuda;
/// Damaged files, and what finds the damage.
mod damage;
/// Lookup files and vocabulary maps.
mod drafters;
/// EAGLE-3 drafts: reference logits and counts.
mod eagle3;
/// Heads are split off, grafted back, and refused where they do not fit.
mod graft;
/// Hashes are the reference tool's.
mod hash;
/// Broken input: an error that names the place, never a panic.
mod hostile;
/// Checkpoints on the Hub, as far as they are needed.
mod hub;
/// What users hand to specrun: flags, variables, models on the Hub, conversations.
mod inputs;
/// What files are said to be.
mod inspect;
/// Few threads, little memory, files that change while they are read.
mod limits;
/// The Hub, on loopback.
#[allow(dead_code, reason = "the tests of the client need more of it")]
#[path = "../hub/tests/mock/mod.rs"]
mod mock;
/// Output names, publication, signals and strays, for both programs.
mod outputs;
/// Models in parts, and runs that were interrupted.
mod parts;
/// What a run takes of memory.
mod plan;
/// Models become the reference quantizer's files.
mod quantize;
/// Models run: reference logits and tokens, speculation proved, dead heads found.
mod run;
/// Keys that are changed in a finished file.
mod set_metadata;
/// The rules of this repository.
mod tidy;
/// The judge: baselines, ways to decode, formats.
mod verify;
/// Draft vocabularies: reduced, mapped, put in and taken out.
mod vocab;
