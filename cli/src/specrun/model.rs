//! Flags shared by several commands, and their conversion to runner configurations.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, ensure};
use kernels::backend::CacheType;
use kernels::cpu::{CpuConfig, Isa, Layout, Prefetching};
use kernels::cuda;
use runner::cache::CacheTypes;
use runner::model_files::{DraftFiles, Files};
use runner::run_config::RunCaches;
use runner::sample::SampleConfig;
use runner::speculate::{DraftConfig, DraftLength, DraftLimits, Policy, SpecType, Verification};
use runner::tokenizer::EncodeConfig;
use schemas::arch::Hparams;
use schemas::{gguf, input, threads};
use verify::DecodeOptions;

use super::device::{Device, DeviceChoice, DeviceConfig};
use super::model_file::{ModelFile, TargetArgs};
use super::ngrams::NgramArgs;
use crate::hint::Hinted;
use crate::output;

/// Target model and machine flags.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    pub(super) caches: CacheArgs,
}

/// Element types of the target's KV cache.
#[derive(Debug, clap::Args)]
pub(super) struct CacheArgs {
    #[arg(long, help = cache_help("target's K cache", "-ctk"), value_name = "TYPE", env = "LLAMA_ARG_CACHE_TYPE_K", hide_env_values = true, default_value_t, value_parser = cache_type)]
    cache_type_k: CacheType,
    #[arg(long, help = cache_help("target's V cache", "-ctv"), value_name = "TYPE", env = "LLAMA_ARG_CACHE_TYPE_V", hide_env_values = true, default_value_t, value_parser = cache_type)]
    cache_type_v: CacheType,
}

impl CacheArgs {
    pub(super) fn types(&self) -> CacheTypes {
        CacheTypes {
            k: self.cache_type_k,
            v: self.cache_type_v,
        }
    }
}

/// Returns the help text of a cache type flag, with the names of all types.
fn cache_help(cache: &str, short: &str) -> String {
    let names: Vec<&str> = CacheType::all().map(CacheType::name).collect();
    format!(
        "Element type of the {cache}: {} [short: {short}]",
        names.join(", ")
    )
}

fn cache_type(name: &str) -> Result<CacheType, String> {
    named(&CacheType::names(), name)
}

/// Context size of a run.
#[derive(Debug, clap::Args)]
pub(super) struct ContextArgs {
    /// Maximum context size of each sequence, in tokens
    ///
    /// 0 for the context size that the model was trained with. Texts end where the context is full.
    #[arg(
        short = 'c',
        long,
        value_name = "N",
        env = "LLAMA_ARG_CTX_SIZE",
        hide_env_values = true,
        default_value_t = 0
    )]
    ctx_size: u32,
}

impl ContextArgs {
    /// Returns the requested size; `None` for the model's training context.
    pub(super) fn n_ctx_max(&self) -> Option<usize> {
        (self.ctx_size > 0).then_some(self.ctx_size as usize)
    }
}

/// Number of sequences decoded together.
#[derive(Debug, clap::Args)]
pub(super) struct ParallelArgs {
    /// Number of prompts to decode in parallel [short: -np]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_N_PARALLEL", hide_env_values = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,
}

impl ParallelArgs {
    pub(super) fn n_seq(&self) -> usize {
        self.parallel.into()
    }
}

/// Length of generated texts.
#[derive(Debug, clap::Args)]
pub(super) struct LengthArgs {
    /// Maximum number of tokens to generate
    ///
    /// [default: a prompt's own n_predict, else 128; for bench --tasks 192]
    #[arg(
        short,
        long,
        value_name = "N",
        visible_alias = "predict",
        env = "LLAMA_ARG_N_PREDICT",
        hide_env_values = true
    )]
    pub(super) n_predict: Option<NonZeroUsize>,
}

/// Device, thread and kernel flags.
#[derive(Debug, clap::Args)]
pub(super) struct MachineArgs {
    /// Device: auto, cpu, cuda or cuda:N
    ///
    /// auto is a CUDA device if one is usable, else the CPU. `specrun devices` lists the numbers N. The result does
    /// not depend on the device
    #[arg(
        long,
        value_name = "NAME",
        env = "LLAMA_ARG_DEVICE",
        hide_env_values = true,
        default_value = "auto"
    )]
    device: DeviceChoice,
    /// Layers on the CUDA device: all, or 0 for the CPU [short: -ngl]
    ///
    /// Models are not divided between devices: a number below the model's layer count is an error
    #[arg(
        long,
        visible_alias = "gpu-layers",
        value_name = "N",
        env = "LLAMA_ARG_N_GPU_LAYERS",
        hide_env_values = true
    )]
    n_gpu_layers: Option<GpuLayers>,
    /// Number of CPU threads; 0 or -1 for one per core
    ///
    /// At most one thread per core is started. The result does not depend on the number
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_THREADS", hide_env_values = true, allow_negative_numbers = true, default_value = "0", value_parser = n_threads)]
    threads: u16,
    /// Instruction set of the CPU kernels: amx, avx512, avxvnni, avx2, dotprod, neon, portable
    ///
    /// The result does not depend on it [default: the fastest that the machine supports]
    #[arg(long, value_name = "NAME")]
    isa: Option<Isa>,
    /// Do not repack quantized weights [short: -nr]
    ///
    /// They are multiplied in the layout of the file, which saves load time and memory but decodes slower
    #[arg(long, env = "LLAMA_ARG_NO_REPACK", hide_env_values = true, value_parser = clap::builder::FalseyValueParser::new())]
    no_repack: bool,
    /// Distance at which weights are prefetched, in cache lines of 64 bytes, or `streams`; 0 for no prefetching
    ///
    /// `streams` interleaves prefetches of parts of a weight that are 4 KiB or more apart. The result does not depend on it
    /// [default: measured on the first tokens]
    #[arg(long, value_name = "N|streams")]
    prefetch: Option<Prefetching>,
}

fn n_threads(text: &str) -> Result<u16, String> {
    match text.parse::<i16>() {
        Ok(-1) => Ok(0),
        Ok(n @ 0..=512) => Ok(n.unsigned_abs()),
        _ => Err("expected a number from 0 to 512, or -1".to_owned()),
    }
}

/// The requested number of layers on a CUDA device.
#[derive(Clone, Copy, Debug)]
enum GpuLayers {
    /// All if there is a device, as llama.cpp's default.
    Auto,
    All,
    First(u32),
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuLayers::Auto => f.write_str("auto"),
            GpuLayers::All => f.write_str("all"),
            GpuLayers::First(n) => n.fmt(f),
        }
    }
}

impl FromStr for GpuLayers {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<GpuLayers, &'static str> {
        match (text, text.parse()) {
            ("auto" | "-1", _) => Ok(GpuLayers::Auto),
            ("all", _) => Ok(GpuLayers::All),
            (_, Ok(n)) => Ok(GpuLayers::First(n)),
            _ => Err("expected a number, all or auto"),
        }
    }
}

impl ModelArgs {
    /// Returns the local path of the target's file, downloading it if necessary.
    pub(super) fn path(&self) -> anyhow::Result<&Path> {
        self.target.path()
    }

    pub(super) fn target(&self) -> &TargetArgs {
        &self.target
    }

    pub(super) fn device_config(&self) -> anyhow::Result<DeviceConfig> {
        self.machine.device_config(self.path()?)
    }

    pub(super) fn device(&self) -> anyhow::Result<Device> {
        self.machine.device(self.path()?)
    }
}

impl MachineArgs {
    /// Returns the device for the model in `model`.
    fn choice(&self, model: &Path) -> anyhow::Result<DeviceChoice> {
        match self.n_gpu_layers {
            None | Some(GpuLayers::Auto | GpuLayers::All) => Ok(self.device),
            Some(GpuLayers::First(0)) => Ok(DeviceChoice::Cpu),
            Some(GpuLayers::First(n)) => {
                let name = model.display();
                let plan = gguf::open(model).with_context(|| name.to_string())?;
                let n_layer = Hparams::from_plan(&plan)
                    .with_context(|| name.to_string())?
                    .n_layer;
                ensure!(
                    n >= n_layer,
                    "{name}: -ngl {n}, but the model has {n_layer} layers and cannot be divided between \
                     devices: expected all or at least {n_layer} for a CUDA device, or 0 for the CPU"
                );
                Ok(self.device)
            }
        }
    }

    fn device_config(&self, model: &Path) -> anyhow::Result<DeviceConfig> {
        let n_threads = self.n_threads();
        // Also for work beside the kernels, such as checks of files and sums of importance matrices.
        threads::set_limit(n_threads);
        let cpu = CpuConfig {
            threads: n_threads,
            isa: self.isa,
            layout: match self.no_repack {
                true => Layout::FileOrder,
                false => Layout::Repacked,
            },
            prefetch: self.prefetch,
        };
        let choice = self.choice(model)?;
        if let (Some(n @ (GpuLayers::All | GpuLayers::First(1..))), DeviceChoice::Auto) =
            (self.n_gpu_layers, choice)
            && let Err(why) = cuda::find()
        {
            output::warning(&format_args!("-ngl {n}: running on the CPU: {why}"));
        }
        Ok(DeviceConfig { choice, cpu })
    }

    /// Returns the number of CPU threads: at most one per core, since additional threads only wait for
    /// each other.
    fn n_threads(&self) -> usize {
        let (requested, cores) = (usize::from(self.threads), threads::cores());
        if requested > cores {
            output::note(&format_args!(
                "--threads {requested}: using {cores}, one per core available to this process"
            ));
        }
        requested.min(cores)
    }

    /// Opens the device for the model in `model`.
    pub(super) fn device(&self, model: &Path) -> anyhow::Result<Device> {
        Device::open(self.device_config(model)?)
    }
}

/// Speculators, their draft lengths and their files.
#[derive(Debug, clap::Args)]
pub(super) struct SpecArgs {
    #[arg(long, value_name = "LIST", env = "LLAMA_ARG_SPEC_TYPE", hide_env_values = true, help = spec_type_help())]
    spec_type: Option<String>,
    /// Draft to verify if several speculators have one: first or best
    ///
    /// first is the first in the order of --spec-type, best the one with the most tokens expected to be
    /// accepted
    #[arg(long = "spec-policy", value_name = "first|best", default_value = "first", value_parser = policy)]
    pub(super) policy: Policy,
    /// Maximum draft length of model-based speculators, in tokens
    #[arg(long, value_name = "N", env = "LLAMA_ARG_SPEC_DRAFT_N_MAX", hide_env_values = true, default_value_t = 3, value_parser = clap::value_parser!(u8).range(..=MAX_DRAFT))]
    spec_draft_n_max: u8,
    /// Minimum draft length of model-based speculators, in tokens
    ///
    /// Shorter drafts (see --spec-draft-p-min) are dropped
    #[arg(long, value_name = "N", env = "LLAMA_ARG_SPEC_DRAFT_N_MIN", hide_env_values = true, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=MAX_DRAFT))]
    spec_draft_n_min: u8,
    /// Minimum probability of a drafted token, 0 to 1
    ///
    /// The draft ends before the first token below it
    #[arg(long, visible_alias = "draft-p-min", value_name = "P", env = "LLAMA_ARG_SPEC_DRAFT_P_MIN", hide_env_values = true, default_value_t = 0.0, value_parser = probability)]
    spec_draft_p_min: f32,
    /// Choose the draft length automatically
    ///
    /// The choice depends on the measured cost of drafting, the cost of verification and the acceptance rate.
    /// Drafting stops where it does not pay. The text does not change
    #[arg(long)]
    spec_draft_auto: bool,
    /// Accepted for compatibility with llama.cpp; no effect
    ///
    /// There it is the probability at which a draft tree branches; drafts here are linear
    #[arg(long, hide = true, visible_alias = "draft-p-split", value_name = "P", env = "LLAMA_ARG_SPEC_DRAFT_P_SPLIT", hide_env_values = true, default_value_t = 0.1, value_parser = probability)]
    spec_draft_p_split: f32,
    /// Draft model, EAGLE-3 draft or MTP sidecar [short: -md]
    ///
    /// May be given several times, for drafts of different kinds. hf://org/name/FILE.gguf is downloaded; -hfd
    /// org/name[:TYPE] selects the file by type
    #[arg(
        long,
        visible_alias = "spec-draft-model",
        value_name = "DRAFT.gguf",
        env = "LLAMA_ARG_SPEC_DRAFT_MODEL",
        hide_env_values = true
    )]
    model_draft: Vec<ModelFile>,
    #[arg(long, help = cache_help("draft's K cache", "-ctkd"), visible_alias = "cache-type-k-draft", value_name = "TYPE", env = "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", hide_env_values = true, default_value_t, value_parser = cache_type)]
    spec_draft_type_k: CacheType,
    #[arg(long, help = cache_help("draft's V cache", "-ctvd"), visible_alias = "cache-type-v-draft", value_name = "TYPE", env = "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", hide_env_values = true, default_value_t, value_parser = cache_type)]
    spec_draft_type_v: CacheType,
    /// Vocabulary map for a draft model with another tokenizer
    ///
    /// Made by specconv map-vocab
    #[arg(long, value_name = "MAP.gguf")]
    spec_vocab_map: Option<PathBuf>,
    /// Static lookup file for ngram-cache [short: -lcs]
    ///
    /// Made by specrun build-lookup
    #[arg(long, value_name = "FILE")]
    lookup_cache_static: Option<PathBuf>,
    /// Dynamic lookup file for ngram-cache, with earlier texts [short: -lcd]
    ///
    /// generate adds the texts of the run to it, at the end or on interruption, and creates it if it does not
    /// exist
    #[arg(long, value_name = "FILE")]
    lookup_cache_dynamic: Option<PathBuf>,
    #[command(flatten)]
    ngrams: NgramArgs,
}

/// Largest draft length that a user may request. Logits and states are kept for every draft position.
const MAX_DRAFT: i64 = runner::context::MAX_DRAFT as i64;

fn probability(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

/// Parses the name of a policy.
fn policy(name: &str) -> Result<Policy, String> {
    named(&Policy::NAMES, name)
}

/// Parses the name of a verification method.
pub(super) fn verification(name: &str) -> Result<Verification, String> {
    named(&Verification::NAMES, name)
}

fn named<T: Copy>(names: &[(&str, T)], name: &str) -> Result<T, String> {
    let known = names.iter().find(|(known, _)| *known == name);
    known.map(|&(_, value)| value).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|&(name, _)| name).collect();
        format!("expected {}", names.join(" or "))
    })
}

fn spec_type_help() -> String {
    let names = SpecType::ALL.map(SpecType::name).join(", ");
    format!("Speculators, separated by commas: {names}; or none")
}

impl SpecArgs {
    pub(super) fn drafts(&self) -> anyhow::Result<DraftFiles> {
        let models = self.model_draft.iter();
        let models = models.map(|draft| draft.path().map(Path::to_path_buf));
        Ok(DraftFiles {
            models: models.collect::<Result<_, _>>()?,
            vocab_map: self.spec_vocab_map.clone(),
            lookup_static: self.lookup_cache_static.clone(),
            lookup_dynamic: self.lookup_cache_dynamic.clone(),
        })
    }

    pub(super) fn drafting(&self) -> anyhow::Result<DraftConfig> {
        let (n_min, n_max) = (self.spec_draft_n_min, self.spec_draft_n_max);
        anyhow::ensure!(
            n_min <= n_max,
            "--spec-draft-n-min {n_min}: expected at most --spec-draft-n-max, which is {n_max}"
        );
        Ok(DraftConfig {
            limits: DraftLimits {
                n_max: n_max.into(),
                n_min: n_min.into(),
                p_min: self.spec_draft_p_min,
            },
            length: if self.spec_draft_auto {
                DraftLength::Automatic
            } else {
                DraftLength::Fixed
            },
            ngrams: self.ngrams.config()?,
        })
    }

    /// Returns the cache types of a run with these target cache flags.
    pub(super) fn caches(&self, target: &CacheArgs) -> RunCaches {
        RunCaches {
            target: target.types(),
            draft: CacheTypes {
                k: self.spec_draft_type_k,
                v: self.spec_draft_type_v,
            },
        }
    }

    /// Returns the options of greedy decoding, one sequence at a time.
    pub(super) fn options(
        &self,
        target: &CacheArgs,
        context: &ContextArgs,
    ) -> anyhow::Result<DecodeOptions> {
        Ok(DecodeOptions {
            drafting: self.drafting()?,
            policy: self.policy,
            n_parallel: 1,
            n_ctx_max: context.n_ctx_max(),
            sample: SampleConfig::at(0.0, 0),
            caches: self.caches(target),
        })
    }

    /// Returns the requested speculators; `None` without `--spec-type`.
    pub(super) fn spec_types(&self) -> anyhow::Result<Option<Vec<SpecType>>> {
        let Some(list) = &self.spec_type else {
            return Ok(None);
        };
        if list == "none" {
            return Ok(Some(Vec::new()));
        }
        let mut types = Vec::new();
        for name in list.split(',') {
            anyhow::ensure!(
                name != "none",
                "--spec-type {list}: none cannot be combined with other speculators"
            );
            let kind = SpecType::by_name(name)?;
            anyhow::ensure!(
                !types.contains(&kind),
                "--spec-type {list}: {name} is given twice"
            );
            types.push(kind);
        }
        Ok(Some(types))
    }
}

/// Sampling parameters.
#[derive(Debug, clap::Args)]
pub(super) struct SampleArgs {
    /// Temperature; 0 selects the most likely token (greedy decoding)
    #[arg(
        long,
        visible_alias = "temperature",
        value_name = "T",
        env = "LLAMA_ARG_TEMPERATURE",
        hide_env_values = true,
        default_value_t = 0.0
    )]
    temp: f32,
    /// Sample from the N most likely tokens; 0 disables the filter
    ///
    /// Only with --temp above 0
    #[arg(
        long,
        value_name = "N",
        env = "LLAMA_ARG_TOP_K",
        hide_env_values = true,
        default_value_t = 40
    )]
    top_k: usize,
    /// Sample from the most likely tokens with total probability P
    ///
    /// 1 disables the filter. Only with --temp above 0
    #[arg(long, value_name = "P", env = "LLAMA_ARG_TOP_P", hide_env_values = true, default_value_t = 0.95, value_parser = probability)]
    top_p: f32,
    /// Drop tokens less likely than P times the most likely one
    ///
    /// 0 disables the filter. Only with --temp above 0
    #[arg(long, value_name = "P", env = "LLAMA_ARG_MIN_P", hide_env_values = true, default_value_t = 0.05, value_parser = probability)]
    min_p: f32,
    /// Random seed; the same seed gives the same text
    #[arg(short, long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

impl SampleArgs {
    pub(super) fn config(&self) -> runner::sample::SampleConfig {
        runner::sample::SampleConfig {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
        }
    }
}

/// One text, given as text or as token ids.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(super) struct TextArgs {
    /// Prompt text, instead of -p
    #[arg(index = 2, value_name = "TEXT")]
    text: Option<String>,
    /// Prompt text; - reads it from standard input
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Prompt as comma-separated token ids
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    tokens: Option<Vec<u32>>,
}

impl TextArgs {
    /// Returns the token ids, if they are given as such.
    pub(super) fn ids(&self) -> Option<&[u32]> {
        self.tokens.as_deref()
    }

    /// Returns the text, if there is one. With -m, the argument in the place of the model is the text.
    pub(super) fn text(&self, target: &TargetArgs) -> anyhow::Result<Option<String>> {
        let spare = target.spare_argument();
        if let Some(spare) = spare
            && (self.text.is_some() || self.prompt.is_some() || self.tokens.is_some())
        {
            return Err(unexpected(spare).into());
        }
        if let Some(spare) = spare {
            let text = spare.to_str().context("the prompt is not UTF-8")?;
            return Ok(Some(text.to_owned()));
        }
        match self.prompt.as_deref() {
            Some("-") => {
                let stdin = Path::new("/dev/stdin");
                let text = input::read_text(stdin, input::Kind::Stream, input::MAX_WHOLE);
                Ok(Some(without_newline(text.context("standard input")?)))
            }
            Some(text) => Ok(Some(text.to_owned())),
            None => Ok(self.text.clone()),
        }
    }

    /// Returns the tokens. `special` controls whether the special tokens that the model
    /// requires, such as BOS, are added.
    pub(super) fn encode(
        &self,
        target: &TargetArgs,
        files: &Files,
        special: &SpecialArgs,
    ) -> anyhow::Result<Vec<u32>> {
        match (self.ids(), self.text(target)?) {
            (Some(tokens), _) => Ok(tokens.to_vec()),
            (None, Some(text)) => Ok(files.tokenizer.encode(&text, special.config())),
            (None, None) => Err(no_prompt("TEXT or -p TEXT").into()),
        }
    }
}

/// Returns the error for an argument that is neither model nor text.
pub(super) fn unexpected(argument: &Path) -> Hinted {
    Hinted::new(
        format!("unexpected argument {:?}", argument.display().to_string()),
        "-m already names the model",
    )
}

/// Returns the error for a command without its prompt.
pub(super) fn no_prompt(expected: &str) -> Hinted {
    let hint = format!("give one: {expected}; -p - reads standard input");
    Hinted::new("no prompt was given", hint)
}

/// Removes the line break at the end of a file or of standard input.
pub(super) fn without_newline(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// Handling of special tokens during tokenization.
#[derive(Debug, clap::Args)]
pub(super) struct SpecialArgs {
    /// Do not add the special tokens that the model requires, such as BOS
    #[arg(long)]
    no_special: bool,
}

impl SpecialArgs {
    pub(super) fn config(&self) -> EncodeConfig {
        EncodeConfig {
            add_special: !self.no_special,
            parse_special: true,
        }
    }
}
