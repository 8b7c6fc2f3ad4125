//! [`serve`]: loads a model, starts the engine and the HTTP server, and stops both.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use kernels::backend::Backend;
use runner::loaded_models::LoadedModels;
use runner::model_files::Files;
use runner::run_config::RunConfig;
use runner::sample::SampleConfig;
use serde_json::{Map, Value};

use crate::auth::ApiKeys;
use crate::connections;
use crate::engine::{Engine, Shared};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::routes;
use crate::slots::Slots;
use crate::state::{AppState, Limits, ModelInfo, unix_time};

/// Configuration of the HTTP side of a server.
#[derive(Debug)]
pub struct ServerConfig {
    /// The socket to accept connections on.
    pub listener: TcpListener,
    /// Model name in replies; `None` for the file's name.
    pub alias: Option<String>,
    /// Keys that clients must present.
    pub keys: ApiKeys,
    /// Limits of requests and connections.
    pub limits: Limits,
    /// Sampling settings of requests that have none.
    pub sample: SampleConfig,
    /// Chat template to use instead of the model's own.
    pub chat_template: Option<String>,
    /// Variables of the chat template that requests may override.
    pub chat_kwargs: Map<String, Value>,
    /// Time that running requests have to end after `stop` returned true.
    pub shutdown_timeout: Duration,
    /// Version of the program, as clients see it.
    pub version: String,
}

/// The server cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The model cannot be loaded.
    #[error(transparent)]
    Model(#[from] runner::Error),
    /// The socket or a thread failed.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error.
        source: std::io::Error,
    },
}

/// Interval at which `stop` is called.
const POLL: Duration = Duration::from_millis(50);
/// Threads that read requests and write replies.
const N_IO_THREADS: usize = 2;

/// Loads the model and serves until `stop` returns true. `ready` is called when the model is loaded.
/// Running requests then have `shutdown_timeout` to end; after that they end with an error.
///
/// # Errors
/// The model cannot be loaded, or the socket or a thread fails.
pub fn serve<B: Backend>(
    files: Files,
    backend: &Arc<B>,
    run: &RunConfig,
    config: ServerConfig,
    ready: impl FnOnce(),
    stop: impl Fn() -> bool + Send + Sync,
) -> Result<(), ServeError> {
    let files = Arc::new(files);
    let shared = Arc::new(Shared {
        queue: Queue::new(config.limits.max_queue),
        slots: Slots::new(run.n_seq),
        metrics: Metrics::default(),
        is_aborted: AtomicBool::new(false),
    });
    let loaded = LoadedModels::new(&files, backend, std::slice::from_ref(run))?;
    let mut driver = loaded.driver(run)?;
    ready();
    let grace = config.shutdown_timeout;
    let (limits, listener) = (config.limits, config.listener.try_clone());
    let listener = listener.map_err(|source| ServeError::System {
        what: "listening socket",
        source,
    })?;
    let state = Arc::new(AppState {
        model: model_info(&files, backend, run, &config),
        shared: Arc::clone(&shared),
        files: Arc::clone(&files),
        keys: config.keys,
        limits,
        sample: config.sample,
        chat_template: config.chat_template,
        chat_kwargs: config.chat_kwargs,
        started: unix_time(),
        next: AtomicU64::new(0),
        secret: RandomState::new().hash_one(0u8),
    });
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let result = http(listener, state, limits, &shared, &stop, grace);
            // Whatever happened, the engine must end.
            shared.queue.close();
            shared.is_aborted.store(true, Ordering::Relaxed);
            result
        });
        loop {
            let whole = Engine::new(driver, &files.tokenizer, &shared).run();
            if whole {
                break;
            }
            // The caches may be inconsistent after a panic.
            driver = loaded.driver(run)?;
        }
        match server.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Runs the HTTP server until `stop` returns true.
fn http(
    listener: TcpListener,
    state: Arc<AppState>,
    limits: Limits,
    shared: &Shared,
    stop: &(impl Fn() -> bool + Sync),
    grace: Duration,
) -> Result<(), ServeError> {
    let failed = |what| move |source| ServeError::System { what, source };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(N_IO_THREADS)
        .enable_all()
        .build()
        .map_err(failed("starting threads"))?;
    runtime.block_on(async {
        listener
            .set_nonblocking(true)
            .map_err(failed("listening socket"))?;
        let listener = tokio::net::TcpListener::from_std(listener);
        let listener = listener.map_err(failed("listening socket"))?;
        let stopped = async {
            while !stop() {
                tokio::time::sleep(POLL).await;
            }
            shared.queue.close();
        };
        let aborted = async {
            while !shared.queue.is_closed() {
                tokio::time::sleep(POLL).await;
            }
            tokio::time::sleep(grace).await;
            shared.queue.clear();
            shared.is_aborted.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        // Connections get a moment longer than requests, to send the last error.
        let last = grace + Duration::from_secs(1);
        let served = connections::run(listener, routes::router(state), limits, stopped, last);
        tokio::select! {
            () = served => {}
            () = aborted => {}
        }
        Ok(())
    })
}

fn model_info<B: Backend>(
    files: &Files,
    backend: &Arc<B>,
    run: &RunConfig,
    config: &ServerConfig,
) -> ModelInfo {
    let path: &Path = &files.model.path;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let tensors = &files.model.plan.tensors;
    ModelInfo {
        id: config.alias.clone().unwrap_or(name.into_owned()),
        n_ctx: run.n_ctx,
        n_slots: run.n_seq,
        spec_types: run
            .spec_types
            .iter()
            .map(|kind| kind.name().to_owned())
            .collect(),
        backend: backend.name(),
        version: config.version.clone(),
        size: tensors.iter().map(|tensor| tensor.size_bytes).sum(),
        n_params: tensors
            .iter()
            .map(|tensor| tensor.shape.iter().product::<u64>())
            .sum(),
    }
}
