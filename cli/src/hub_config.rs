//! Hub configuration (endpoint, token, cache folder) from the environment variables of the Hub's own
//! tools.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use anyhow::Context;
use hub::{HubConfig, Network, Retry, Timeouts};
use schemas::input;

use crate::output;

/// Number of parallel requests.
const CONNECTIONS: usize = 8;
/// Maximum size of a token file, in bytes.
const MAX_TOKEN_BYTES: u64 = 64 << 10;
/// Maximum size of a request, in bytes.
const PIECE_BYTES: u64 = 16 << 20;

/// Reads the configuration from the environment.
///
/// # Errors
/// No environment variable determines the cache folder.
pub(crate) fn from_environment() -> anyhow::Result<HubConfig> {
    config(&|name| env::var_os(name))
}

/// Reads the configuration from the given variables.
fn config(variable: &dyn Fn(&str) -> Option<OsString>) -> anyhow::Result<HubConfig> {
    let non_empty = |name: &str| variable(name).filter(|value| !value.is_empty());
    let path = |name: &str| non_empty(name).map(PathBuf::from);
    let text = |name: &str| non_empty(name).and_then(|value| value.into_string().ok());
    let user_cache = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let home = path("HF_HOME").or_else(|| Some(user_cache()?.join("huggingface")));
    let cache = path("HF_HUB_CACHE").or_else(|| Some(home.as_ref()?.join("hub")));
    let token_file = path("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token")));
    let token = match (text("HF_TOKEN"), token_file.filter(|file| file.exists())) {
        (None, Some(file)) => {
            let token = input::read_text(&file, input::Kind::Stream, MAX_TOKEN_BYTES);
            Some(token.with_context(|| file.display().to_string())?)
        }
        (token, _) => token,
    };
    let token = token.map(|token| token.trim().to_owned());
    let is_set = |name: &str| {
        text(name).is_some_and(|value| {
            ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str())
        })
    };
    Ok(HubConfig {
        endpoint: text("HF_ENDPOINT").unwrap_or("https://huggingface.co".to_owned()),
        token: token.filter(|token| !token.is_empty()),
        cache: cache.context("cache folder of the Hub: none found, set HF_HOME or HOME")?,
        network: if is_set("HF_HUB_OFFLINE") {
            Network::Offline
        } else {
            Network::Online
        },
        retry: Retry::default(),
        timeouts: Timeouts::default(),
        connections: CONNECTIONS,
        piece_bytes: PIECE_BYTES,
        on_retry: Arc::new(|error, pause: Duration| {
            output::note(&format_args!(
                "{error}; retrying in {} s",
                pause.as_secs_f32()
            ));
        }),
        sleep: Arc::new(thread::sleep),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn config_of(variables: &[(&str, &str)]) -> HubConfig {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name);
        config(&|name| find(name).map(|(_, value)| value.into())).unwrap()
    }

    #[test]
    fn the_environment_is_read_like_huggingface_hub_does() {
        let plain = config_of(&[("HOME", "/h")]);
        assert_eq!(plain.endpoint, "https://huggingface.co");
        assert_eq!(plain.cache, Path::new("/h/.cache/huggingface/hub"));
        assert_eq!((plain.token, plain.network), (None, Network::Online));
        let caches = config_of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]);
        assert_eq!(caches.cache, Path::new("/c/huggingface/hub"));
        let all = config_of(&[
            ("HF_HOME", "/f"),
            ("HF_TOKEN", " hf_x\n"),
            ("HF_ENDPOINT", "http://mirror"),
            ("HF_HUB_OFFLINE", "True"),
        ]);
        assert_eq!(all.cache, Path::new("/f/hub"));
        assert_eq!(all.token.as_deref(), Some("hf_x"));
        assert_eq!(all.endpoint, "http://mirror");
        assert_eq!(all.network, Network::Offline);
        let cache = config_of(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/g")]);
        assert_eq!(cache.cache, Path::new("/g"));
        assert!(config(&|_| None).is_err());
    }

    #[test]
    fn the_token_can_be_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        let token = |more: &[(&str, &str)]| config_of(&[&[("HF_HOME", home)], more].concat()).token;
        assert_eq!(token(&[]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_TOKEN", "hf_x")]).as_deref(), Some("hf_x"));
        assert_eq!(token(&[("HF_TOKEN_PATH", "/nowhere/x")]), None);
    }
}
