//! [`Agent`]: sends one request. It is the only user of the HTTP library, which the feature `client` adds;
//! without it, every request fails.

use http::{Request, Response};

/// The HTTP library.
pub(super) struct Agent {
    #[cfg(feature = "client")]
    agent: ureq::Agent,
}

#[cfg(feature = "client")]
mod limits {
    use std::time::Duration;

    /// Time to connect.
    pub(super) const CONNECT: Duration = Duration::from_secs(10);
    /// Time of a whole request.
    pub(super) const REQUEST: Duration = Duration::from_secs(600);
    /// Maximum size of a reply in bytes.
    pub(super) const REPLY: u64 = 64 << 20;
}

#[cfg(feature = "client")]
impl Agent {
    pub(super) fn new() -> Agent {
        let agent = ureq::config::Config::builder()
            .http_status_as_error(false)
            .user_agent(concat!("specrun/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(limits::CONNECT))
            .timeout_global(Some(limits::REQUEST))
            // A server may close an idle connection just when it is used again.
            .max_idle_connections(0)
            .build()
            .new_agent();
        Agent { agent }
    }

    /// Sends a request, and reads the reply.
    pub(super) fn send(&self, request: Request<String>) -> Result<Response<String>, String> {
        use std::io::Read;

        // A request without a body has no length.
        let reply = match request.body().is_empty() {
            true => self.agent.run(request.map(drop)),
            false => self.agent.run(request),
        };
        let (head, body) = reply.map_err(|error| error.to_string())?.into_parts();
        let mut bytes = Vec::new();
        let mut body = body.into_reader().take(limits::REPLY + 1);
        body.read_to_end(&mut bytes)
            .map_err(|error| error.to_string())?;
        if bytes.len() as u64 > limits::REPLY {
            let mb = limits::REPLY >> 20;
            return Err(format!("the reply is longer than {mb} MB"));
        }
        let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
        Ok(Response::from_parts(head, text))
    }
}

#[cfg(not(feature = "client"))]
impl Agent {
    pub(super) fn new() -> Agent {
        Agent {}
    }

    pub(super) fn send(&self, _: Request<String>) -> Result<Response<String>, String> {
        Err("this program was built without the feature hub, which has the HTTP client".to_owned())
    }
}
