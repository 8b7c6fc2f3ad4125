//! Loaded models. A thread owns the weights and caches, and decodes one text after another.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use cli::embedded::Failure;
use cli::specrun::device::{Device, DeviceChoice, DeviceConfig};
use kernels::backend::Backend;
use kernels::cpu::CpuConfig;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use runner::chat::{ChatConfig, ChatMode, PromptRenderer, clock};
use runner::loaded_models::load_driver;
use runner::model_files::{DraftFiles, Files};
use runner::run_config::RunConfig;
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{
    DecodeConfig, DraftConfig, Driver, Request, SpecType, TextConfig, TokenEvent,
};
use runner::tokenizer::{ControlText, EncodeConfig};
use verify::report;

use crate::error::{raise, raise_library, raise_text};
use crate::wait;

/// A loaded model.
#[pyclass(frozen)]
pub(crate) struct Engine {
    files: Arc<Files>,
    jobs: Mutex<Sender<Job>>,
    #[pyo3(get)]
    n_ctx: usize,
    #[pyo3(get)]
    backend: String,
    #[pyo3(get)]
    spec_types: Vec<&'static str>,
}

/// A text to generate.
struct Job {
    request: Request,
    text: TextConfig,
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
}

enum Event {
    /// Some of the text.
    Text(String),
    /// The report, as JSON.
    Done(String),
    Failed(Failure),
}

/// Configuration of a run, and its files.
struct Load {
    files: Arc<Files>,
    config: RunConfig,
    device: DeviceConfig,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (path, draft, spec_type, n_draft_max, n_ctx, device, threads))]
    #[allow(clippy::too_many_arguments, reason = "arguments of a Python function")]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        draft: Vec<PathBuf>,
        spec_type: Option<Vec<String>>,
        n_draft_max: usize,
        n_ctx: usize,
        device: &str,
        threads: usize,
    ) -> PyResult<Engine> {
        let choice: DeviceChoice = device
            .parse()
            .map_err(|error| raise_text(py, format!("device {device:?}: {error}")))?;
        let drafts = DraftFiles {
            models: draft,
            ..DraftFiles::default()
        };
        let files = py.detach(|| Files::open(&path, &drafts));
        let files = Arc::new(files.map_err(|error| raise_library(py, error))?);
        let spec_types = match spec_type {
            Some(names) => names.iter().map(|name| SpecType::by_name(name)).collect(),
            None if files.drafts.is_empty() => Ok(Vec::new()),
            None => Ok(files.default_spec_types().into_iter().take(1).collect()),
        };
        let spec_types: Vec<SpecType> = spec_types.map_err(|error| raise_library(py, error))?;
        let names = spec_types.iter().map(|kind| kind.name()).collect();
        let n_ctx = n_ctx.min(files.model.hparams.n_ctx_train as usize).max(1);
        let load = Load {
            files: Arc::clone(&files),
            config: RunConfig {
                drafting: DraftConfig::of_length(n_draft_max),
                ..RunConfig::new(spec_types, n_ctx)
            },
            device: DeviceConfig {
                choice,
                cpu: CpuConfig {
                    threads,
                    ..CpuConfig::default()
                },
            },
        };
        let (jobs, received) = mpsc::channel();
        let (loaded, loading) = mpsc::channel();
        wait::spawn(move || run(load, &loaded, &received))?;
        let stop = Arc::new(AtomicBool::new(false));
        match wait::event(py, &Mutex::new(loading), &stop)? {
            Ok(backend) => Ok(Engine {
                files,
                jobs: Mutex::new(jobs),
                n_ctx,
                backend,
                spec_types: names,
            }),
            Err(failure) => Err(raise(py, failure)),
        }
    }

    /// Returns the tokens of a text.
    fn encode(&self, py: Python<'_>, text: &str, add_special: bool) -> Vec<u32> {
        let config = EncodeConfig {
            add_special,
            parse_special: true,
        };
        py.detach(|| self.files.tokenizer.encode(text, config))
    }

    /// Returns the text of tokens.
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        let n_tokens = self.files.tokenizer.n_tokens();
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= n_tokens) {
            let message = format!("token {token}, expected an id below {n_tokens}");
            return Err(raise_text(py, message));
        }
        Ok(self.files.tokenizer.decode(&tokens, ControlText::Skip))
    }

    /// Returns a prompt as one user message of the model's chat template.
    fn chat(&self, py: Python<'_>, text: &str) -> PyResult<String> {
        let config = ChatConfig {
            mode: ChatMode::Always,
            kwargs: serde_json::Map::new(),
            template: None,
            now: clock(None),
            add_special: true,
        };
        let model = &self.files.model;
        let renderer = PromptRenderer::new(&model.plan.metadata, &self.files.tokenizer, config);
        renderer
            .plain(text)
            .map_err(|error| raise_text(py, format!("{}: {error}", model.path.display())))
    }

    /// Starts to generate a text.
    #[allow(clippy::too_many_arguments, reason = "arguments of a Python function")]
    fn generate(
        &self,
        py: Python<'_>,
        tokens: Vec<u32>,
        n_predict: usize,
        temperature: f32,
        top_k: usize,
        top_p: f32,
        min_p: f32,
        seed: u64,
        ignore_eos: bool,
    ) -> PyResult<Generation> {
        let sampler = Sampler::new(SampleConfig {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
        });
        let sampler = sampler.map_err(|error| raise_library(py, error))?;
        let (events, received) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let job = Job {
            request: Request::new("prompt", tokens, n_predict),
            text: TextConfig {
                ignore_end: ignore_eos,
                // A text does not depend on the texts before it.
                stream: Some(0),
                ..TextConfig::new(sampler)
            },
            events,
            stop: Arc::clone(&stop),
        };
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.send(job)
            .map_err(|_| PyRuntimeError::new_err("internal error: the engine has ended"))?;
        Ok(Generation {
            events: Mutex::new(received),
            stop,
            report: Mutex::new(None),
        })
    }
}

/// A text that is generated.
#[pyclass(frozen)]
pub(crate) struct Generation {
    events: Mutex<Receiver<Event>>,
    stop: Arc<AtomicBool>,
    report: Mutex<Option<String>>,
}

#[pymethods]
impl Generation {
    /// Waits for more text; `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<String>> {
        if self.report().is_some() {
            return Ok(None);
        }
        match wait::event(py, &self.events, &self.stop)? {
            Event::Text(text) => Ok(Some(text)),
            Event::Failed(failure) => Err(raise(py, failure)),
            Event::Done(report) => {
                *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
                Ok(None)
            }
        }
    }

    /// Returns the report as JSON, once the text is complete.
    fn report(&self) -> Option<String> {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.clone()
    }

    /// Ends the text after the current token.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Loads the models, then decodes until the engine is dropped.
fn run(load: Load, loaded: &Sender<Result<String, Failure>>, jobs: &Receiver<Job>) {
    let device = match Device::open(load.device) {
        Ok(device) => device,
        Err(error) => {
            let _ = loaded.send(Err(Failure::of(error)));
            return;
        }
    };
    match &device {
        Device::Cpu(backend) => run_on(backend, &load, loaded, jobs),
        Device::Cuda(backend) => run_on(backend, &load, loaded, jobs),
    }
}

fn run_on<B: Backend>(
    backend: &Arc<B>,
    load: &Load,
    loaded: &Sender<Result<String, Failure>>,
    jobs: &Receiver<Job>,
) {
    let mut driver = match load_driver(&load.files, backend, &load.config) {
        Ok(driver) => driver,
        Err(error) => {
            let _ = loaded.send(Err(Failure::of(error)));
            return;
        }
    };
    let _ = loaded.send(Ok(backend.name()));
    for job in jobs {
        let event = match decode(&mut driver, &load.files, backend, &job) {
            Ok(report) => Event::Done(report),
            Err(error) => Event::Failed(Failure::of(error)),
        };
        // The caller may have dropped the generation.
        let _ = job.events.send(event);
    }
}

/// Decodes a text, and returns its report as JSON.
fn decode<B: Backend>(
    driver: &mut Driver<B>,
    files: &Files,
    backend: &Arc<B>,
    job: &Job,
) -> Result<String, runner::Error> {
    let mut stream = files.tokenizer.stream(ControlText::Skip);
    let send = |text: String| {
        if !text.is_empty() {
            let _ = job.events.send(Event::Text(text));
        }
    };
    let mut on_token = |event: TokenEvent<'_>| send(stream.push(event.token));
    let is_end = |token| files.tokenizer.is_end_of_generation(token);
    let mut config = DecodeConfig {
        on_token: Some(&mut on_token),
        ..DecodeConfig::new(job.text, &is_end)
    };
    let stop = || job.stop.load(Ordering::Relaxed);
    let requests = std::slice::from_ref(&job.request);
    let decoded = driver.decode_until(requests, &mut config, &stop);
    if let Some(failure) = backend.failure() {
        return Err(failure.into());
    }
    let (completions, total) = decoded?;
    send(stream.finish());
    let mut report = report::completion(files, &job.request, &completions[0]);
    report.backend = backend.name();
    report.counters = report::counters(&total);
    Ok(serde_json::to_string(&report).expect("a report becomes JSON"))
}
