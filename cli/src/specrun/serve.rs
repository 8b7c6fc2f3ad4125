//! `specrun serve`: the HTTP server.

use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use runner::model_files::Files;
use runner::run_config::RunConfig;
use runner::sample::SampleConfig;
use runner::speculate::DraftLength;
use schemas::input;
use schemas::report::Verdict;
use serve::{ApiKeys, Limits, ServerConfig, serve};

use super::chat::TemplateArgs;
use super::device::on_device;
use super::model::{ContextArgs, ModelArgs, SpecArgs};
use crate::interrupt;
use crate::output;

/// Serve a model over HTTP, with the endpoints of llama-server and OpenAI
///
/// Requests are decoded together, in one target pass per step. Their texts do not depend on each other, on
/// speculation or on the cache. Draft lengths are chosen automatically, up to --spec-draft-n-max.
/// docs/serving.md lists the endpoints and the request fields.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    template: TemplateArgs,
    /// Number of slots: texts decoded at the same time, each with its own context [short: -np]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_N_PARALLEL", hide_env_values = true, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Address to listen on
    #[arg(
        long,
        value_name = "IP",
        env = "LLAMA_ARG_HOST",
        hide_env_values = true,
        default_value = "127.0.0.1"
    )]
    host: IpAddr,
    /// Port to listen on; 0 for any free port, which is printed
    #[arg(
        long,
        value_name = "PORT",
        env = "LLAMA_ARG_PORT",
        hide_env_values = true,
        default_value_t = 8080
    )]
    port: u16,
    /// Model name in replies [default: the name of the file]
    #[arg(
        short,
        long,
        value_name = "NAME",
        env = "LLAMA_ARG_ALIAS",
        hide_env_values = true
    )]
    alias: Option<String>,
    /// API keys, separated by commas; every request must have one of them
    #[arg(
        long,
        value_name = "KEYS",
        env = "LLAMA_API_KEY",
        hide_env_values = true,
        value_delimiter = ','
    )]
    api_key: Vec<String>,
    /// File of API keys, one per line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Draft --spec-draft-n-max tokens every time, even where it does not pay
    #[arg(long)]
    spec_draft_fixed: bool,
    /// Maximum number of texts that wait for a slot; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_queue: usize,
    /// Seconds for running requests to finish after SIGTERM or SIGINT
    #[arg(long, value_name = "S", default_value_t = 10)]
    shutdown_timeout: u16,
}

/// Sampling settings of requests that have none, as llama-server's.
const SAMPLE: SampleConfig = SampleConfig {
    temperature: 0.8,
    top_k: 40,
    top_p: 0.95,
    min_p: 0.05,
    seed: 0,
};

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let files = Files::open(args.model.path()?, &args.spec.drafts()?)?;
    let n_ctx_train = files.model.hparams.n_ctx_train as usize;
    let mut drafting = args.spec.drafting()?;
    if !args.spec_draft_fixed {
        drafting.length = DraftLength::Automatic;
    }
    let run = RunConfig {
        spec_types: match args.spec.spec_types()? {
            Some(spec_types) => spec_types,
            None => files.default_spec_types(),
        },
        policy: args.spec.policy,
        drafting,
        n_seq: args.parallel.into(),
        n_ctx: args.context.n_ctx_max().unwrap_or(n_ctx_train),
        caches: args.spec.caches(&args.model.caches),
    };
    let keys = ApiKeys::new(args.keys()?);
    if keys.is_empty() && !args.host.is_loopback() {
        output::warning(&format_args!(
            "--host {}: anyone who reaches this address can use the server; set --api-key",
            args.host
        ));
    }
    // The port is taken before the model is loaded, so that a port in use is reported at once.
    let address = (args.host, args.port);
    let listener = TcpListener::bind(address);
    let listener =
        listener.with_context(|| format!("--host {} --port {}", args.host, args.port))?;
    let address = listener.local_addr()?;
    let config = ServerConfig {
        listener,
        alias: args.alias.clone(),
        keys,
        limits: Limits {
            max_queue: args.max_queue,
            ..Limits::default()
        },
        sample: SAMPLE,
        chat_template: args.template.read()?,
        chat_kwargs: args
            .template
            .chat_template_kwargs
            .clone()
            .unwrap_or_default(),
        shutdown_timeout: Duration::from_secs(args.shutdown_timeout.into()),
        version: format!(
            "specrun {}-{}",
            env!("CARGO_PKG_VERSION"),
            env!("TOOL_COMMIT")
        ),
        warn: |message| output::warning(&message),
    };
    let device = args.model.device()?;
    let ready = || output::note(&format_args!("listening on http://{address}"));
    interrupt::while_serving(|stop| {
        on_device!(&device, backend => {
            serve(files, backend, &run, config, ready, stop).map_err(Into::into)
        })
    })?;
    Ok(Verdict::Pass)
}

impl Args {
    /// Returns the keys of both flags.
    fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = input::read_text(path, input::Kind::Stream, input::MAX_HANDWRITTEN);
            let text = text.with_context(|| path.display().to_string())?;
            keys.extend(text.lines().map(|line| line.trim().to_owned()));
        }
        Ok(keys)
    }
}
