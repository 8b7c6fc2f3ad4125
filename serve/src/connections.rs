//! Accepts connections, within limits of number and time.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::state::Limits;

/// Maximum size of a request header in bytes.
const MAX_HEADER: usize = 16 << 10;
/// Pause after a failed accept, such as when the process has no file descriptors left.
const RETRY: Duration = Duration::from_millis(100);

/// Serves connections until `stop` completes, then waits for open ones to end, for at most `grace`.
pub(crate) async fn run(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
    grace: Duration,
) {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(limits.max_connections));
    let mut stop = std::pin::pin!(stop);
    loop {
        let free = Arc::clone(&slots).acquire_owned();
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = async { (free.await, listener.accept().await) } => accepted,
        };
        let (Ok(permit), Ok((stream, _))) = accepted else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        // Tokens are sent as they are generated.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(MAX_HEADER)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A client that breaks the protocol or leaves ends its own connection only.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(grace, graceful.shutdown()).await;
}
