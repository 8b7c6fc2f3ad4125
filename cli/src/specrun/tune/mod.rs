//! `specrun tune`: chooses the type of every group of tensors by measurement.

mod groups;
mod knapsack;
mod measurements;
mod recipe;

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use kernels::backend::Backend;
use quantize::{FType, Imatrix, QuantizeConfig, decide, parse_type};
use runner::model_files::{DraftFiles, Files};
use schemas::gguf::{self, DType, Owned, Plan, Tensor};
use schemas::input;
use schemas::outfile::OutputNames;
use schemas::progress::{Task, Unit};
use schemas::report::{InputFile, SCHEMA_VERSION, TuneChoice, TuneMix, TuneReport, Verdict};
use schemas::threads;
use verify::divergence::exchange::{Effect, Exchange, ExchangeConfig};
use verify::perplexity::Text as Corpus;

use super::device::on_device;
use super::model::{CacheArgs, MachineArgs, SpecialArgs};
use crate::hint::Hinted;
use crate::output::{self, Format, bytes};
use crate::provenance::provenance;
use crate::report_file::{self, OverwriteArgs, ReportFile};
use crate::specconv::write::parse_bytes;

use super::page::{decimal, estimate};
use groups::{Group, groups};
use knapsack::{Item, Limit, choose};
use measurements::{Measurements, Types};

/// Choose the element type of every tensor by measurement, and write a recipe
///
/// Exchanges one group of tensors at a time in memory (the tensors of one role in a band of layers), and
/// measures for every type the KL divergence from the unquantized model and the acceptance of its MTP head.
/// The recipe has the types with the smallest sum of effects within the size.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Unquantized model: F32, BF16 or F16
    #[arg(value_name = "MODEL.gguf")]
    model: PathBuf,
    /// Text file
    #[arg(short, long, value_name = "TEXT.txt")]
    file: PathBuf,
    /// Largest size of the file, in bytes with suffix K, M or G (powers of 1000)
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, group = "limit", required_unless_present_any = ["bpw", "kld"])]
    size: Option<u64>,
    /// Largest number of bits per weight, over all tensors
    #[arg(long, value_name = "BITS", value_parser = positive, group = "limit")]
    bpw: Option<f64>,
    /// Largest KL divergence in nats; the recipe is the smallest whose sum of effects is below
    #[arg(long, value_name = "NATS", value_parser = positive, group = "limit")]
    kld: Option<f64>,
    /// Importance matrix, as written by specrun imatrix
    #[arg(long, value_name = "IMATRIX")]
    imatrix: Option<PathBuf>,
    /// Recipe to write
    #[arg(short, long, value_name = "OUT.toml", default_value = "recipe.toml")]
    outfile: PathBuf,
    /// File with the measurements, which later runs continue [default: OUT.measurements.json]
    #[arg(long, value_name = "OUT.json")]
    measurements: Option<PathBuf>,
    /// Element types to choose from, separated by commas
    ///
    /// Default: q2_K to q8_0; with an importance matrix also iq2_s to iq4_xs. Rows that are not a multiple of 256
    /// elements get the types that "specconv quantize" takes instead
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = weight_type)]
    types: Vec<DType>,
    /// Number of bands of layers; tensors of one role in a band get one type
    ///
    /// More bands take more measurements: one for each role, band and type
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    bands: u32,
    /// Divergence in nats that is worth all of the head's acceptance
    #[arg(long, value_name = "NATS", default_value_t = 0.1, value_parser = non_negative)]
    draft_weight: f64,
    /// Do not measure the standard mixes of about the same size
    #[arg(long)]
    no_compare: bool,
    /// Context size in tokens, at least 4: the text is scored in chunks of this length
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    ctx_size: u32,
    /// Maximum number of chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    #[command(flatten)]
    special: SpecialArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    caches: CacheArgs,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Parts into which the rows of a tensor are divided for threads.
const N_PARTS: u64 = 64;
/// Types without an importance matrix.
const TYPES: [&str; 6] = ["q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "q8_0"];
/// Further types with an importance matrix.
const IMATRIX_TYPES: [&str; 4] = ["iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"];

fn weight_type(name: &str) -> Result<DType, String> {
    parse_type(name).map_err(|error| error.to_string())
}

fn non_negative(text: &str) -> Result<f64, &'static str> {
    let number: f64 = text.parse().map_err(|_| "expected a number")?;
    match number.is_finite() && number >= 0.0 {
        true => Ok(number),
        false => Err("expected a number of at least 0"),
    }
}

fn positive(text: &str) -> Result<f64, &'static str> {
    match non_negative(text)? {
        0.0 => Err("expected a number above 0"),
        number => Ok(number),
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let inputs = [&args.model, &args.file];
    let inputs: Vec<&Path> = inputs
        .into_iter()
        .chain(&args.imatrix)
        .map(PathBuf::as_path)
        .collect();
    let mut names = OutputNames::new(&inputs, args.overwrite.existing());
    let recipe_file = ReportFile::regular(&args.outfile, &mut names)?;
    let kept = args.measurements.clone();
    let kept = kept.unwrap_or_else(|| args.outfile.with_extension("measurements.json"));
    ReportFile::update(&kept, &mut names)?;

    let files = Files::open(&args.model, &DraftFiles::default())?;
    let imatrix = args.imatrix.as_deref().map(Imatrix::open).transpose()?;
    let groups = groups(
        &files.model.plan,
        &args.types(),
        imatrix.as_ref(),
        args.bands,
    )?;
    ensure!(
        !groups.is_empty(),
        "{}: no tensor can be quantized to one of the types, expected an unquantized model (F32, BF16 or F16)",
        args.model.display()
    );
    let text = input::read_text(&args.file, input::Kind::Stream, input::MAX_WHOLE);
    let text = text.with_context(|| args.file.display().to_string())?;
    let tokens = files.tokenizer.encode(&text, args.special.config());
    let bos = files.tokenizer.bos();
    let corpus = Corpus {
        name: args.file.display().to_string(),
        bos: bos.filter(|bos| tokens.first() == Some(bos)),
        tokens,
    };
    let mut origin = provenance([args.model.as_path()], None)?;
    if let Some(path) = &args.imatrix {
        origin.files.push(imatrix_file(path)?);
    }
    let config = ExchangeConfig {
        n_ctx: args.ctx_size as usize,
        n_chunks_max: args.chunks.map(|n| n as usize),
        types: args.caches.types(),
    };
    let measurements = Measurements::open(&kept, &origin.files, &corpus, config)?;
    let device = args.machine.device(&args.model)?;
    let mut tuner = Tuner {
        args,
        plan: files.model.plan.clone(),
        files,
        imatrix,
        measurements,
    };
    let mut report = on_device!(&device, backend => tuner.tune(backend, &groups, &corpus, config))?;
    let recipe = recipe::text(args, &groups, &report, &tuner.plan)?;
    report.provenance = Some(origin);
    report_file::publish(vec![(recipe_file, recipe.into_bytes())])?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// Describes an importance matrix, in either of its formats.
fn imatrix_file(path: &Path) -> anyhow::Result<InputFile> {
    let shown = || path.display().to_string();
    Ok(InputFile {
        name: path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        size_bytes: std::fs::metadata(path).with_context(shown)?.len(),
        sha256: gguf::file_sha256(path, &|| false).with_context(shown)?,
        file_type: None,
    })
}

impl Args {
    fn types(&self) -> Vec<DType> {
        let defaults = TYPES.iter().chain(match self.imatrix {
            Some(_) => &IMATRIX_TYPES[..],
            None => &[],
        });
        match self.types.is_empty() {
            true => defaults.filter_map(|name| parse_type(name).ok()).collect(),
            false => self.types.clone(),
        }
    }
}

/// A model whose weights are exchanged.
struct Tuner<'a> {
    args: &'a Args,
    /// The unquantized model.
    plan: Plan,
    /// The files that are measured; their plan has the exchanged tensors.
    files: Files,
    imatrix: Option<Imatrix>,
    measurements: Measurements,
}

impl Tuner<'_> {
    fn tune<B: Backend>(
        &mut self,
        backend: &Arc<B>,
        groups: &[Group],
        corpus: &Corpus,
        config: ExchangeConfig,
    ) -> anyhow::Result<TuneReport> {
        let folder = tempfile::tempdir().context("temporary folder")?;
        let logits = folder.path().join("base.logits");
        let exchange = Exchange::new(backend, &self.files, corpus, config, &logits)?;
        let n: usize = groups.iter().map(|group| group.options.len()).sum();
        let task = Task::start("tune", n as u64, Unit::Steps("measurements"));
        let mut items = Vec::new();
        for group in groups {
            let mut own = Vec::new();
            for choice in &group.options {
                let names = group
                    .tensors
                    .iter()
                    .map(|name| (name.clone(), choice.dtype));
                let types: Types = names.collect();
                let name = choice.dtype.to_string();
                let effect = self.effect(&exchange, &group.name, &name, &types)?;
                own.push(Item {
                    size_bytes: choice.size_bytes,
                    cost: self.cost(&exchange, effect),
                });
                task.advance(1);
            }
            items.push(own);
        }
        drop(task);
        let chosen = self.choose(groups, &items)?;
        let options = || {
            groups
                .iter()
                .zip(&chosen)
                .map(|(group, i)| (group, group.options[*i]))
        };
        let types = options().flat_map(|(group, choice)| {
            group
                .tensors
                .iter()
                .map(move |name| (name.clone(), choice.dtype))
        });
        let types: Types = types.collect();
        let mut choices = Vec::new();
        for (group, choice) in options() {
            let own = group
                .tensors
                .iter()
                .map(|name| (name.clone(), choice.dtype))
                .collect();
            let found = self.measurements.find(&own);
            choices.push(TuneChoice {
                name: group.name.clone(),
                tensors: group.tensors.clone(),
                dtype: choice.dtype.to_string(),
                size_bytes: choice.size_bytes,
                kld: found.map_or(0.0, |effect| effect.kld.value),
            });
        }
        let mut mixes = vec![self.mix(&exchange, "tuned", &types)?];
        let (data_bytes, bits_per_weight) = (mixes[0].data_bytes, mixes[0].bits_per_weight);
        if !self.args.no_compare {
            for (name, types) in self.standard_mixes(data_bytes)? {
                mixes.push(self.mix(&exchange, &name, &types)?);
            }
        }
        Ok(TuneReport {
            schema_version: SCHEMA_VERSION,
            provenance: None,
            model: self.args.model.display().to_string(),
            recipe: self.args.outfile.display().to_string(),
            n_scored: exchange.n_scored(),
            base_acceptance: exchange.base_acceptance,
            predicted_kld: choices.iter().map(|choice| choice.kld).sum(),
            groups: choices,
            data_bytes,
            bits_per_weight,
            mixes,
        })
    }

    /// Chooses a type for each group.
    fn choose(&self, groups: &[Group], items: &[Vec<Item>]) -> anyhow::Result<Vec<usize>> {
        let grouped: Vec<&str> = groups
            .iter()
            .flat_map(|g| &g.tensors)
            .map(String::as_str)
            .collect();
        let other = self
            .plan
            .tensors
            .iter()
            .filter(|t| !grouped.contains(&t.name.as_str()));
        let other: u64 = other.map(|tensor| tensor.size_bytes).sum();
        let file_bytes: u64 = match std::fs::metadata(&self.args.model) {
            Ok(found) => found.len().saturating_sub(self.plan.data_bytes()),
            Err(_) => 0,
        };
        let weights = self.plan.n_elements() as f64;
        let limit = match (self.args.size, self.args.bpw, self.args.kld) {
            (Some(size), ..) => Limit::Bytes(size.saturating_sub(file_bytes + other)),
            (_, Some(bits), _) => {
                Limit::Bytes(((bits * weights / 8.0) as u64).saturating_sub(other))
            }
            (.., kld) => Limit::Cost(kld.unwrap_or_default()),
        };
        choose(items, limit).ok_or_else(|| {
            let least = |key: &dyn Fn(&Item) -> f64| -> f64 {
                let groups = items.iter();
                groups.map(|own| own.iter().map(key).fold(f64::INFINITY, f64::min)).sum()
            };
            let smallest = least(&|item| item.size_bytes as f64) as u64 + other;
            let message = match limit {
                Limit::Bytes(_) => format!(
                    "no mix of these types is small enough: the smallest has {} ({} bits per weight)",
                    bytes(smallest + file_bytes),
                    decimal(smallest as f64 * 8.0 / weights, 2)
                ),
                Limit::Cost(_) => format!(
                    "no mix of these types is below this divergence: the sum of effects is at least {}",
                    decimal(least(&|item| item.cost), 6)
                ),
            };
            Hinted::new(message, "--types q2_K,q3_K,q4_K,q5_K,q6_K,q8_0 selects the types to choose from").into()
        })
    }

    /// Cost of an effect: divergence, and the lost acceptance.
    fn cost<B: Backend>(&self, exchange: &Exchange<'_, B>, effect: Effect) -> f64 {
        let lost = exchange.base_acceptance.zip(effect.acceptance);
        let lost = lost.map_or(0.0, |(base, own)| base - own);
        effect.kld.value + self.args.draft_weight * lost
    }

    /// Measures the model with these types, unless an earlier run has.
    fn effect<B: Backend>(
        &mut self,
        exchange: &Exchange<'_, B>,
        group: &str,
        dtype: &str,
        types: &Types,
    ) -> anyhow::Result<Effect> {
        if let Some(known) = self.measurements.find(types) {
            return Ok(known);
        }
        self.exchange(types)?;
        let effect = exchange.measure(&self.files)?;
        let data_bytes = self.files.model.plan.data_bytes();
        self.measurements
            .add(group, dtype, types, data_bytes, effect)?;
        Ok(effect)
    }

    /// Gives these types to tensors of the measured model; all others are unquantized.
    fn exchange(&mut self, types: &Types) -> anyhow::Result<()> {
        let rules: Vec<(&str, DType)> = types.iter().map(|(name, t)| (name.as_str(), *t)).collect();
        let config = groups::config(&rules, self.imatrix.as_ref())?;
        let quantized = quantize::plan(&self.plan, &config)?.plan;
        let mut plan = self.plan.clone();
        for tensor in &mut plan.tensors {
            if !types.contains_key(&tensor.name) {
                continue;
            }
            let found = quantized
                .tensor(&tensor.name)
                .context("tensor of the plan")?;
            let bytes = read(found)?;
            let row_bytes = found.row_bytes();
            *tensor = found.clone();
            tensor.source = Arc::new(Owned { bytes, row_bytes });
        }
        self.files.model.plan.tensors = plan.tensors;
        Ok(())
    }

    fn mix<B: Backend>(
        &mut self,
        exchange: &Exchange<'_, B>,
        name: &str,
        types: &Types,
    ) -> anyhow::Result<TuneMix> {
        let effect = self.effect(exchange, "all", name, types)?;
        let sizes = self
            .plan
            .tensors
            .iter()
            .map(|tensor| match types.get(&tensor.name) {
                Some(dtype) => gguf::size_bytes(*dtype, &tensor.shape),
                None => Ok(tensor.size_bytes),
            });
        let data_bytes = sizes.sum::<Result<u64, _>>()?;
        Ok(TuneMix {
            name: name.to_owned(),
            data_bytes,
            bits_per_weight: data_bytes as f64 * 8.0 / self.plan.n_elements() as f64,
            kld: effect.kld,
            acceptance: effect.acceptance,
        })
    }

    /// Returns the types of the largest standard mix that is not larger, and of the smallest that is larger.
    fn standard_mixes(&self, data_bytes: u64) -> anyhow::Result<Vec<(String, Types)>> {
        let mut sizes = Vec::new();
        for ftype in FType::all() {
            let mut config = QuantizeConfig::new(ftype);
            config.imatrix = self.imatrix.clone();
            let layout = ftype.default_dtype().and_then(DType::layout);
            if layout.is_none_or(|layout| layout.block_len == 1) {
                continue;
            }
            let decisions = match decide(&self.plan, &config) {
                // The blocks of this mix do not fit the rows.
                Err(quantize::Error::Unfit { .. }) => continue,
                decisions => decisions?,
            };
            let has_entry = |name: &str| {
                let matrix = self.imatrix.as_ref();
                matrix.is_some_and(|matrix| matrix.entry(name).is_some())
            };
            if decisions
                .iter()
                .any(|d| d.needs_imatrix && !has_entry(&d.tensor))
            {
                continue;
            }
            let size: u64 = decisions.iter().map(|d| d.to_bytes).sum();
            let changed = decisions.into_iter().filter(|d| d.from != d.to);
            let types: Types = changed.map(|d| (d.tensor, d.to)).collect();
            sizes.push((size, ftype.to_string(), types));
        }
        sizes.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let larger = sizes.partition_point(|(size, ..)| *size <= data_bytes);
        let near = sizes.into_iter().skip(larger.saturating_sub(1));
        Ok(near
            .take(if larger == 0 { 1 } else { 2 })
            .map(|(_, name, types)| (name, types))
            .collect())
    }
}

/// Quantizes a tensor on all cores.
fn read(tensor: &Tensor) -> anyhow::Result<Vec<u8>> {
    let (n_rows, row_bytes) = (tensor.n_rows(), tensor.row_bytes());
    let step = n_rows.div_ceil(N_PARTS).max(1);
    let starts: Vec<u64> = (0..n_rows).step_by(step as usize).collect();
    let parts = threads::try_map(
        &starts,
        || (),
        |(), &start| {
            let rows = start..n_rows.min(start + step);
            let mut out = vec![0; ((rows.end - rows.start) * row_bytes) as usize];
            let read = tensor.source.read(rows, &mut out);
            read.map_err(|error| anyhow::anyhow!("{}: {error}", tensor.name))?;
            anyhow::Ok(out)
        },
    )?;
    Ok(parts.concat())
}

/// Text output of the report.
struct Text<'a>(&'a TuneReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let width = r
            .groups
            .iter()
            .map(|group| group.name.len())
            .max()
            .unwrap_or(0);
        for group in &r.groups {
            writeln!(
                f,
                "{:width$}  {:8} {:>9}  KLD {}",
                group.name,
                group.dtype,
                bytes(group.size_bytes),
                decimal(group.kld, 6)
            )?;
        }
        for mix in &r.mixes {
            write!(
                f,
                "\n{:8} {:>9}, {} bits per weight: mean KLD {}",
                mix.name,
                bytes(mix.data_bytes),
                decimal(mix.bits_per_weight, 3),
                estimate(&mix.kld, 6)
            )?;
            if let Some(acceptance) = mix.acceptance {
                write!(f, ", acceptance {}", decimal(acceptance, 4))?;
            }
        }
        write!(
            f,
            "\nsum of the effects of all groups: {}, over {} tokens",
            decimal(r.predicted_kld, 6),
            r.n_scored
        )
    }
}
