//! [`serve`]: loads a model, starts the engine and the HTTP server, and stops both.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
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
use crate::routes;
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
    /// Reports a problem to the operator of the server, such as a speculator that failed.
    pub warn: fn(&str),
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
/// Maximum number of threads that tokenize prompts and render chat templates; further requests wait.
const N_BLOCKING_THREADS: usize = 8;

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
    let shared = Arc::new(Shared::new(config.limits.max_queue, run.n_seq));
    let loaded = LoadedModels::new(&files, backend, std::slice::from_ref(run))?;
    let mut driver = loaded.driver(run)?;
    ready();
    let state = Arc::new(AppState {
        model: model_info(&files, backend, run, &config),
        shared: Arc::clone(&shared),
        files: Arc::clone(&files),
        keys: config.keys,
        limits: config.limits,
        sample: config.sample,
        chat_template: config.chat_template,
        chat_kwargs: config.chat_kwargs,
        started: unix_time(),
        next: AtomicU64::new(0),
        secret: RandomState::new().hash_one(0u8),
    });
    let (listener, grace, warn) = (config.listener, config.shutdown_timeout, config.warn);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            // However the HTTP server ends, the engine must end, too.
            let _abort = Abort(&shared);
            http(listener, state, &shared, &stop, grace)
        });
        // However the engine ends, the HTTP server must end, too.
        let _abort = Abort(&shared);
        while !Engine::new(driver, &files.tokenizer, &shared, warn).run() {
            // The caches may be inconsistent after a panic.
            driver = loaded.driver(run)?;
        }
        match server.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Ends all jobs when it is dropped.
struct Abort<'a>(&'a Shared);

impl Drop for Abort<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Completes when the server must not accept connections any more.
async fn stopped(shared: &Shared, stop: impl Fn() -> bool) {
    while !stop() && !shared.is_aborted() {
        tokio::time::sleep(POLL).await;
    }
    shared.queue.close();
}

/// Runs the HTTP server until `stop` returns true or the engine has failed.
fn http(
    listener: TcpListener,
    state: Arc<AppState>,
    shared: &Shared,
    stop: &(impl Fn() -> bool + Sync),
    grace: Duration,
) -> Result<(), ServeError> {
    let failed = |what| move |source| ServeError::System { what, source };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(N_IO_THREADS)
        .max_blocking_threads(N_BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(failed("starting threads"))?;
    runtime.block_on(async {
        listener
            .set_nonblocking(true)
            .map_err(failed("listening socket"))?;
        let listener = tokio::net::TcpListener::from_std(listener);
        let listener = listener.map_err(failed("listening socket"))?;
        let aborted = async {
            while !shared.queue.is_closed() {
                tokio::time::sleep(POLL).await;
            }
            tokio::time::sleep(grace).await;
            shared.abort();
            std::future::pending::<()>().await;
        };
        // Connections get a moment longer than requests, to send the last error.
        let last = grace + Duration::from_secs(1);
        let (limits, stopped) = (state.limits, stopped(shared, stop));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_stops_when_the_engine_has_failed() {
        let shared = Shared::new(1, 1);
        drop(Abort(&shared));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(stopped(&shared, || false));
        assert!(shared.queue.is_closed());
    }
}
