//! [`Agent`]: sends one request. It is the only user of the HTTP library, which the feature `client` adds;
//! without it, every request fails.

use std::io::Read;

use http::{Request, Response};

use crate::config::HubConfig;
use crate::error::Problem;

/// The bytes of a response, read from the connection.
pub(crate) type Body = Box<dyn Read + Send>;

/// The HTTP library.
pub(crate) struct Agent {
    #[cfg(feature = "client")]
    agent: ureq::Agent,
}

#[cfg(feature = "client")]
impl Agent {
    pub(crate) fn new(config: &HubConfig) -> Agent {
        let agent = ureq::config::Config::builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("specconv/", env!("CARGO_PKG_VERSION")))
            // Compression would change lengths and ranges.
            .accept_encoding("identity")
            .timeout_connect(Some(config.timeouts.connect))
            .timeout_recv_response(Some(config.timeouts.answer))
            .timeout_per_read(Some(config.timeouts.read))
            .max_idle_connections_per_host(config.connections)
            .build()
            .new_agent();
        Agent { agent }
    }

    /// Sends a request without following redirects.
    pub(crate) fn send(&self, request: Request<()>, host: &str) -> Result<Response<Body>, Problem> {
        let response = self.agent.run(request).map_err(|error| {
            let host = host.to_owned();
            match is_unresolved(&error) {
                true => Problem::UnknownHost { host },
                false => Problem::Transport {
                    host,
                    what: error.to_string(),
                },
            }
        })?;
        Ok(response.map(|body| Box::new(body.into_reader()) as Body))
    }
}

#[cfg(not(feature = "client"))]
impl Agent {
    pub(crate) fn new(_: &HubConfig) -> Agent {
        Agent {}
    }

    pub(crate) fn send(&self, _: Request<()>, _: &str) -> Result<Response<Body>, Problem> {
        Err(Problem::NoClient)
    }
}

/// Checks whether a request failed because the name of its host has no address.
#[cfg(feature = "client")]
fn is_unresolved(error: &ureq::Error) -> bool {
    // The resolver's errors have no kind of their own.
    const RESOLVER: &str = "failed to lookup address information";
    match error {
        ureq::Error::HostNotFound => true,
        ureq::Error::Io(error) => error.to_string().starts_with(RESOLVER),
        _ => false,
    }
}
