//! `specrun generate`: continues a text, with or without speculation.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, LineWriter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use kernels::backend::Backend;
use runner::batch::{Embedding, NO_TOKEN};
use runner::chat::{ChatMode, TEMPLATE_KEY};
use runner::loaded_models::load_driver;
use runner::model_files::Files;
use runner::run_config::RunConfig;
use runner::sample::Sampler;
use runner::speculate::lookup::{Lookup, MAX_LEN};
use runner::speculate::{
    Completion, DecodeConfig, Request, RoundEvent, SpecType, Stop, TextConfig, TokenEvent,
    Verification,
};
use runner::tokenizer::ControlText;
use schemas::input;
use schemas::outfile::{Destination, OutputNames, lock_folder_of};
use schemas::report::{Counters, GenerateReport, SpeculatorCounters, TraceRound, Verdict};
use verify::prompts::{self, Prompt};
use verify::report;

use super::chat::ChatArgs;
use super::device::{checked, on_device};
use super::model::{
    self, ContextArgs, LengthArgs, ModelArgs, ParallelArgs, SampleArgs, SpecArgs, SpecialArgs,
    TextArgs, no_prompt, unexpected, without_newline,
};
use super::page::number;
use crate::interrupt;
use crate::output::{self, Format};
use crate::report_file::{self, OverwriteArgs, ReportFile};

/// Continue a text
///
/// Prints the text to stdout as it is generated and the counters to stderr. Speculation does not change
/// the text, except with --spec-verification reject. With several speculators, the first one that has a
/// draft is used (see --spec-policy). Without --spec-type, the files given with -md select the
/// speculators; without -md, nothing is drafted. A speculator that fails is disabled with a warning.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    special: SpecialArgs,
    #[command(flatten)]
    chat: ChatArgs,
    #[command(flatten)]
    length: LengthArgs,
    /// Keep generating after the end-of-sequence token
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    overwrite: OverwriteArgs,
    #[command(flatten)]
    sample: SampleArgs,
    #[command(flatten)]
    spec: SpecArgs,
    /// Draft verification with --temp above 0: match or reject
    ///
    /// match keeps the text of plain decoding. reject (rejection sampling) keeps only its distribution, and may
    /// accept slightly more
    #[arg(long, value_name = "match|reject", default_value = "match", value_parser = model::verification)]
    spec_verification: Verification,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    parallel: ParallelArgs,
    /// Write a JSON line for each target pass and sequence
    ///
    /// A line has the speculator, the drafted tokens, the number of accepted tokens and the rollback
    #[arg(long, value_name = "FILE.jsonl")]
    spec_trace: Option<PathBuf>,
    /// Print the result as JSON, one line for each prompt
    #[arg(long)]
    json: bool,
}

/// The input to continue.
#[derive(Debug, clap::Args)]
struct Input {
    #[command(flatten)]
    text: TextArgs,
    /// Prompt as input embeddings of the first layer
    ///
    /// The file has rows of little-endian f32
    #[arg(long, value_name = "FILE.f32", conflicts_with_all = ["text", "prompt", "tokens", "prompts"])]
    embeddings: Option<PathBuf>,
    /// File with a prompt as plain text, or with prompts as JSON lines
    ///
    /// Lines of JSON have id, and prompt, messages or parts (texts and files of embeddings), and optionally kind and
    /// n_predict. A file that does not begin with { is plain text
    #[arg(short = 'f', long, visible_alias = "file", value_name = "FILE", conflicts_with_all = ["text", "prompt", "tokens"])]
    prompts: Option<PathBuf>,
}

/// Default number of tokens to generate.
pub(crate) const N_PREDICT: usize = 128;

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let model = args.model.path()?;
    let mut drafts = args.spec.drafts()?;
    // The dynamic lookup cache is read and then replaced; no other input may be overwritten.
    let inputs = drafts.paths().map(PathBuf::as_path);
    let inputs = inputs.filter(|&path| drafts.lookup_dynamic.as_deref() != Some(path));
    let prompts = args.input.prompts.iter().chain(&args.input.embeddings);
    let prompts = prompts.map(PathBuf::as_path);
    let mut names = OutputNames::new(
        inputs.chain(prompts).chain([model]),
        args.overwrite.existing(),
    );
    let lookup = match &drafts.lookup_dynamic {
        Some(path) => Some(LookupUpdate {
            path: path.clone(),
            file: ReportFile::update(path, &mut names)?,
        }),
        None => None,
    };
    // The first run creates the file.
    drafts.lookup_dynamic = drafts.lookup_dynamic.filter(|path| path.exists());
    let files = Files::open(model, &drafts)?;
    let requests = requests(args, &files)?;
    let config = run_config(args, &files, &requests)?;
    let device = args.model.device()?;
    // Created last, so that a mistake in the arguments does not empty an earlier trace.
    let trace = match &args.spec_trace {
        Some(path) => Some(Trace::create(path, &mut names)?),
        None => None,
    };
    let Some(lookup) = lookup else {
        on_device!(&device, backend => {
            generate(args, &files, &requests, &config, backend, trace, &|| false)
        })?;
        return Ok(Verdict::Pass);
    };
    let completions = interrupt::while_writing(|stop| {
        on_device!(&device, backend => {
            generate(args, &files, &requests, &config, backend, trace, stop)
        })
    })?;
    lookup.finish(&files, &requests, &completions)?;
    interrupt::after_writing()?;
    Ok(Verdict::Pass)
}

/// Returns the speculators, caches and sizes of the run.
fn run_config(args: &Args, files: &Files, requests: &[Request]) -> anyhow::Result<RunConfig> {
    let n_ctx_max = args.context.n_ctx_max();
    let n_ctx_train = files.model.hparams.n_ctx_train as usize;
    if let Some(n_ctx) = n_ctx_max.filter(|&n_ctx| n_ctx > n_ctx_train) {
        output::note(&format_args!(
            "--ctx-size {n_ctx}: the model was trained for {n_ctx_train} tokens, text beyond them may be \
             poor"
        ));
    }
    let spec_types = match args.spec.spec_types()? {
        Some(spec_types) => spec_types,
        // Without `--spec-type`, only the given draft files select speculators.
        None if files.drafts.is_empty() => Vec::new(),
        None => files.default_spec_types().into_iter().take(1).collect(),
    };
    Ok(RunConfig {
        spec_types,
        policy: args.spec.policy,
        drafting: args.spec.drafting()?,
        n_seq: args.parallel.n_seq().min(requests.len()),
        n_ctx: files.n_ctx(requests, n_ctx_max),
        caches: args.spec.caches(&args.model.caches),
    })
}

/// The dynamic lookup cache, to which the texts of this run are added.
struct LookupUpdate {
    path: PathBuf,
    file: ReportFile,
}

impl LookupUpdate {
    /// Replaces the file with one that also counts all prompts and completions. Other runs may have added
    /// theirs since this one began.
    fn finish(
        self,
        files: &Files,
        requests: &[Request],
        completions: &[Completion],
    ) -> anyhow::Result<()> {
        let _lock = lock_folder_of(&self.path).with_context(|| self.path.display().to_string())?;
        let mut counts = match self.path.exists() {
            true => Lookup::read(&self.path, files.model.hparams.n_vocab as usize)?,
            false => Lookup::default(),
        };
        for (request, completion) in requests.iter().zip(completions) {
            // Embeddings have no token id to count; the tokens before one belong to a separate text.
            let known = request.tokens.rsplit(|&token| token == NO_TOKEN).next();
            let text = [known.unwrap_or_default(), &completion.tokens].concat();
            counts.count(&text, 0, 1..=MAX_LEN);
        }
        report_file::publish(vec![(self.file, counts.to_bytes())])
    }
}

/// Generates all texts, until `stop` returns true.
fn generate<B: Backend>(
    args: &Args,
    files: &Files,
    requests: &[Request],
    config: &RunConfig,
    backend: &Arc<B>,
    mut trace: Option<Trace<'_>>,
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<Vec<Completion>> {
    let mut driver = load_driver(files, backend, config)?;

    // Only a single text is streamed; the output of several sequences would mix.
    let is_streamed = requests.len() == 1 && !args.json;
    let mut stream = files.tokenizer.stream(ControlText::Skip);
    let mut stdout_error = None;
    let mut print = |event: TokenEvent<'_>| {
        if is_streamed && stdout_error.is_none() {
            stdout_error = output::data(&stream.push(event.token)).err();
        }
    };
    let is_end = |token| files.tokenizer.is_end_of_generation(token);
    let text = TextConfig {
        verification: args.spec_verification,
        ignore_end: args.ignore_eos,
        ..TextConfig::new(Sampler::new(args.sample.config())?)
    };
    let mut decode = DecodeConfig {
        on_token: Some(&mut print),
        on_round: Some(&mut |event| {
            if let Some(trace) = &mut trace {
                trace.write(&requests[event.request].id, event);
            }
        }),
        on_failure: Some(&mut |failure| {
            let (name, error) = (failure.kind.name(), &failure.error);
            output::warning(&format_args!("{name} failed and is disabled: {error}"));
        }),
        ..DecodeConfig::new(text, &is_end)
    };
    let (completions, total) = checked(
        &**backend,
        driver
            .decode_until(requests, &mut decode, stop)
            .map_err(Into::into),
    )?;
    if let Some(error) = stdout_error {
        return Err(error);
    }
    if let Some(trace) = trace {
        trace.finish()?;
    }
    files.check_unchanged()?;
    if is_streamed {
        output::data(&format!("{}\n", stream.finish()))?;
        if let Some(why) = silence(args, files, &completions[0]) {
            output::note(&why);
        }
    } else {
        for (request, completion) in requests.iter().zip(&completions) {
            let mut report = completion_report(args, files, request, completion);
            report.backend = backend.name();
            if requests.len() == 1 {
                // Several sequences share forward passes, so bytes read are reported only for a single
                // one.
                report.counters = report::counters(&total);
            }
            output::line(Format::of(args.json), &report, &Text(&report))?;
        }
    }
    output::status(&counters_text(
        &report::counters(&total),
        &config.spec_types,
    ));
    Ok(completions)
}

fn requests(args: &Args, files: &Files) -> anyhow::Result<Vec<Request>> {
    let special = args.special.config();
    let encode = |text: &str| files.tokenizer.encode(text, special);
    let renderer = args
        .chat
        .renderer(files, ChatMode::Messages, special.add_special)?;
    let length = args.length.n_predict;
    let n_predict = |own: Option<NonZeroUsize>| length.or(own).map_or(N_PREDICT, NonZeroUsize::get);
    let single = |tokens| {
        let (id, n_predict) = ("from the command line".to_owned(), n_predict(None));
        vec![Request::new(id, tokens, n_predict)]
    };
    let Input {
        text,
        embeddings,
        prompts,
    } = &args.input;
    let target = args.model.target();
    if let Some(spare) = target.spare_argument()
        && (embeddings.is_some() || prompts.is_some())
    {
        return Err(unexpected(spare).into());
    }
    if let Some(path) = embeddings {
        let embeddings = read_embeddings(path, files.model.hparams.n_embd as usize)?;
        let mut requests = single(vec![NO_TOKEN; embeddings.len()]);
        requests[0].embeddings = embeddings;
        return Ok(requests);
    }
    let plain = |text: &str| {
        args.chat.warn_of_unused(ChatMode::Messages, None);
        anyhow::Ok(single(encode(&renderer.plain(text)?)))
    };
    if let Some(path) = prompts {
        let file = input::read_text(path, input::Kind::Stream, input::MAX_LIST);
        let file = file.with_context(|| path.display().to_string())?;
        if !is_json_lines(&file) {
            return plain(&without_newline(file));
        }
        let lines = prompts::parse_lines(path, &file)?;
        args.chat.warn_of_unused(ChatMode::Messages, Some(&lines));
        let prompts = prompts::render(lines, &renderer)?;
        let request = |prompt: Prompt| {
            let n_predict = n_predict(prompt.n_predict);
            prompt.request_of(&files.tokenizer, special, n_predict)
        };
        return Ok(prompts.into_iter().map(request).collect());
    }
    match (text.ids(), text.text(target)?) {
        (Some(tokens), _) => Ok(single(tokens.to_vec())),
        (None, Some(text)) => plain(&text),
        (None, None) => Err(no_prompt("TEXT, -p TEXT or -f FILE").into()),
    }
}

/// Checks whether a prompt file has JSON lines; all other files are plain text.
fn is_json_lines(text: &str) -> bool {
    text.trim_start().starts_with('{') || text.trim().is_empty()
}

/// Explains a text without visible characters: the reason of its end, and what helps.
fn silence(args: &Args, files: &Files, completion: &Completion) -> Option<String> {
    let text = files
        .tokenizer
        .decode(&completion.tokens, ControlText::Skip);
    if !text.trim().is_empty() {
        return None;
    }
    let n = n_tokens(completion.tokens.len() as u64);
    let last = completion.tokens.last();
    let name = last.map(|&token| files.tokenizer.token_bytes(token));
    let name = name.map(|bytes| String::from_utf8_lossy(bytes).escape_debug().to_string());
    let has_template = files.model.plan.metadata.contains(TEMPLATE_KEY);
    let advice = match (has_template && !args.chat.is_applied(), completion.stop) {
        (true, _) => "; this is an instruct model: try --chat",
        (false, Stop::EndOfText) => "; --ignore-eos keeps generating",
        _ => "",
    };
    Some(match completion.stop {
        Stop::EndOfText => format!(
            "stopped at {} after 0 visible tokens{advice}",
            name.unwrap_or_default()
        ),
        Stop::Context => {
            format!("the context is full after {n} without visible text{advice}")
        }
        Stop::Length | Stop::Interrupted => {
            format!("{n} without visible text{advice}")
        }
    })
}

/// Reads the embeddings of a file: rows of little-endian `f32`.
fn read_embeddings(path: &Path, n_embd: usize) -> anyhow::Result<Vec<Embedding>> {
    let name = path.display();
    let bytes = input::read(path, input::Kind::Stream, input::MAX_WHOLE);
    let bytes = bytes.with_context(|| name.to_string())?;
    let row_bytes = size_of::<f32>() * n_embd;
    ensure!(
        bytes.len().is_multiple_of(row_bytes),
        "{name}: {} bytes, expected rows of {row_bytes} bytes ({n_embd} f32 values)",
        bytes.len()
    );
    let rows = bytes.chunks_exact(row_bytes).enumerate().map(|(i, row)| {
        let values = row
            .as_chunks()
            .0
            .iter()
            .map(|&value| f32::from_le_bytes(value));
        let row: Embedding = values.collect();
        ensure!(
            row.iter().all(|x| x.is_finite()),
            "{name}: row {i} has a NaN or infinite value"
        );
        Ok(row)
    });
    rows.collect()
}

fn completion_report(
    args: &Args,
    files: &Files,
    request: &Request,
    completion: &Completion,
) -> GenerateReport {
    GenerateReport {
        prompt_id: args.input.prompts.as_ref().map(|_| request.id.clone()),
        ..report::completion(files, request, completion)
    }
}

/// Output file of `--spec-trace`. Each line is written when its pass is verified, so that the trace of a
/// hanging run can be read.
struct Trace<'a> {
    path: &'a Path,
    file: LineWriter<File>,
    /// The first error; nothing is written after an error.
    failed: io::Result<()>,
}

impl<'a> Trace<'a> {
    fn create(path: &'a Path, names: &mut OutputNames) -> anyhow::Result<Trace<'a>> {
        let file = match names.claim_report(path)? {
            Destination::File(path) => File::create(path),
            Destination::Stream(path) => File::options().append(true).open(path),
            Destination::Stdout => {
                bail!("--spec-trace -: standard output has the generated text, expected a file")
            }
        };
        let file = file.with_context(|| path.display().to_string())?;
        Ok(Trace {
            path,
            file: LineWriter::new(file),
            failed: Ok(()),
        })
    }

    fn write(&mut self, prompt_id: &str, event: &RoundEvent<'_>) {
        let line = TraceRound {
            round: event.round,
            prompt_id: prompt_id.to_owned(),
            sequence: event.seq,
            position: event.position,
            drafter: event.drafter.map(|kind| kind.name().to_owned()),
            drafted: event.drafted.to_vec(),
            n_accepted: event.n_accepted,
            rollback: event.rollback.map(report::rollback),
            n_rerun: event.n_rerun,
        };
        if self.failed.is_ok() {
            let json = serde_json::to_string(&line).expect("numbers and strings become JSON");
            self.failed = writeln!(self.file, "{json}");
        }
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.failed
            .and_then(|()| self.file.flush())
            .with_context(|| self.path.display().to_string())
    }
}

/// Text output for one of several completions.
struct Text<'a>(&'a GenerateReport);

impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = self.0.prompt_id.as_deref().unwrap_or_default();
        write!(f, "== {id}\n{}", self.0.text)
    }
}

fn n_tokens(n: u64) -> String {
    match n {
        1 => "1 token".to_owned(),
        n => format!("{n} tokens"),
    }
}

/// Formats the counters for people.
fn counters_text(counters: &Counters, spec_types: &[SpecType]) -> String {
    let mut text = n_tokens(counters.n_tokens);
    let mut append = |label: &str, value: Option<f64>, digits: usize| {
        if let Some(value) = value {
            let _ = write!(text, ", {value:.digits$} {label}");
        }
    };
    append("tokens/s", counters.tokens_per_s, 1);
    if output::is_verbose() {
        append("GB/s", counters.gigabytes_per_s, 2);
    }
    if !spec_types.is_empty() {
        append("tokens per pass", counters.tokens_per_target_pass, 2);
        let (drafted, accepted) = (counters.n_drafted, counters.n_accepted);
        let _ = write!(text, "\ndrafted {drafted}, accepted {accepted}");
        if let Some(acceptance) = counters.acceptance {
            let _ = write!(text, ", acceptance {acceptance:.3}");
        }
    }
    if output::is_verbose() {
        for s in &counters.by_speculator {
            let _ = write!(text, "\n{}", statistics(s));
        }
    }
    text
}

/// Formats a speculator's statistics like llama.cpp's log.
fn statistics(s: &SpeculatorCounters) -> String {
    let rates = s.by_draft_position.iter().filter_map(|p| p.acceptance);
    let rates: Vec<String> = rates.map(|rate| format!("{rate:.3}")).collect();
    format!(
        "statistics {}: #calls(b,g,a) = {} {} {}, #gen drafts = {}, #acc drafts = {}, \
         #gen tokens = {}, #acc tokens = {}, #mean acc len = {}, #acc rate/pos = ({}), \
         dur(b,g,a) = {:.3}, {:.3}, {:.3} ms",
        s.name,
        s.n_calls_begin,
        s.n_calls_draft,
        s.n_calls_accept,
        s.n_drafts,
        s.n_accepted_drafts,
        s.n_drafted,
        s.n_accepted,
        number(s.mean_accepted_length, 2),
        rates.join(", "),
        s.begin_ms,
        s.draft_ms,
        s.accept_ms,
    )
}
