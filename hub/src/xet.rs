//! Downloads from Xet storage through the crate `hf-xet`, which `hf-hub` uses for uploads. The feature `upload` adds it.

use std::ops::Range;

use crate::config::HubConfig;
use crate::download::Sink;
use crate::error::Problem;

/// True if this build can download from Xet storage.
pub(crate) const IS_AVAILABLE: bool = cfg!(feature = "upload");

/// A file in Xet storage.
#[cfg_attr(
    not(feature = "upload"),
    expect(dead_code, reason = "only the crate needs it")
)]
pub(crate) struct XetFile<'a> {
    /// `org/name`.
    pub(crate) repo: &'a str,
    pub(crate) commit: &'a str,
    /// Hash of its chunks.
    pub(crate) hash: &'a str,
    pub(crate) size_bytes: u64,
}

/// Fetches a range of a file of Xet storage, in chunks that several files may share.
///
/// # Errors
/// The storage cannot be reached, or sends fewer or more bytes.
#[cfg(feature = "upload")]
pub(crate) fn fetch(
    config: &HubConfig,
    file: &XetFile<'_>,
    range: Range<u64>,
    sink: &mut Sink<'_>,
) -> Result<(), Problem> {
    use ::xet::error::XetError;
    use ::xet::xet_session::{XetConfig, XetFileInfo, XetSessionBuilder};
    use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};

    let problem = |error: XetError| Problem::Xet(error.to_string());
    // The hub returns the address of the storage with a token for it.
    let token = format!(
        "{}/api/models/{}/xet-read-token/{}",
        config.endpoint, file.repo, file.commit
    );
    let mut headers = HeaderMap::new();
    if let Some(own) = &config.token {
        let own = HeaderValue::from_str(&format!("Bearer {own}"));
        headers.insert(AUTHORIZATION, own.map_err(|_| Problem::TokenCharacter)?);
    }
    // By default the crate reports the speed of each transfer to the storage.
    let own = XetConfig::new().with_config("telemetry.enabled", false);
    let own = own.map_err(|error| Problem::Xet(error.to_string()))?;
    let session = XetSessionBuilder::new_with_config(own).build();
    let session = session.map_err(problem)?;
    let group = session.new_download_stream_group().map_err(problem)?;
    let group = group.with_token_refresh_url(token, headers);
    let group = group.build_blocking().map_err(problem)?;
    let info = XetFileInfo::new(file.hash.to_owned(), file.size_bytes);
    let stream = group.download_stream_blocking(info, Some(range.clone()));
    let mut stream = stream.map_err(problem)?;
    let mut at = range.start;
    while let Some(bytes) = stream.blocking_next().map_err(problem)? {
        let end = at + bytes.len() as u64;
        if end > range.end {
            return Err(Problem::Range {
                asked: format!("{} to {}", range.start, range.end),
                found: "more".to_owned(),
            });
        }
        sink(at, &bytes)?;
        at = end;
    }
    match at == range.end {
        true => Ok(()),
        false => Err(Problem::Truncated { at, end: range.end }),
    }
}

#[cfg(not(feature = "upload"))]
pub(crate) fn fetch(
    _: &HubConfig,
    _: &XetFile<'_>,
    _: Range<u64>,
    _: &mut Sink<'_>,
) -> Result<(), Problem> {
    Err(Problem::NoUpload)
}
