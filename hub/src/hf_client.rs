//! Uploads through the crate `hf-hub`, and downloads from Xet storage through `hf-xet`, which `hf-hub` uses. The feature
//! `upload` adds both.

/// True if this build can upload, and download from Xet storage.
pub const CAN_UPLOAD: bool = cfg!(feature = "upload");

/// A file in Xet storage.
#[cfg_attr(
    not(feature = "upload"),
    expect(dead_code, reason = "only the crates need it")
)]
pub(crate) struct XetFile<'a> {
    /// `org/name`.
    pub(crate) repo: &'a str,
    pub(crate) commit: &'a str,
    /// Hash of its chunks.
    pub(crate) hash: &'a str,
    pub(crate) size_bytes: u64,
}

#[cfg(feature = "upload")]
pub(crate) use with_crates::{fetch, upload};
#[cfg(not(feature = "upload"))]
pub(crate) use without_crates::{fetch, upload};

#[cfg(feature = "upload")]
mod with_crates {
    use std::ops::Range;

    use hf_hub::progress::{ProgressEvent, ProgressHandler, UploadEvent};
    use hf_hub::repository::CommitOperation;
    use hf_hub::{HFClient, HFError, RepoTypeModel, split_id};
    use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
    use xet::error::XetError;
    use xet::xet_session::{XetConfig, XetFileInfo, XetSessionBuilder};

    use super::XetFile;
    use crate::config::HubConfig;
    use crate::download::Sink;
    use crate::error::Problem;
    use crate::publish::{Comparison, Upload};

    /// Passes the bytes processed so far to a function.
    struct Handler<F> {
        progress: F,
        /// Bytes of all files.
        total_bytes: u64,
    }

    impl<F: Fn(u64) + Send + Sync> ProgressHandler for Handler<F> {
        fn on_progress(&self, event: &ProgressEvent) {
            match event {
                ProgressEvent::Upload(UploadEvent::Progress {
                    bytes_completed, ..
                }) => (self.progress)(*bytes_completed),
                // Uploads of less than 100 ms, and small files, have no progress of their own.
                ProgressEvent::Upload(UploadEvent::Committing) => (self.progress)(self.total_bytes),
                _ => {}
            }
        }
    }

    pub(crate) fn upload(
        config: &HubConfig,
        comparison: &Comparison,
        upload: &Upload,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<String, Problem> {
        // Messages of the crate state address and status, never the token.
        let problem = |error: HFError| Problem::Upload(error.to_string());
        let mut builder = HFClient::builder()
            .endpoint(config.endpoint.as_str())
            .user_agent(concat!("specconv/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &config.token {
            builder = builder.token(token.as_str());
        }
        let client = builder.build_sync().map_err(problem)?;
        if comparison.parent.is_none() {
            let created = client
                .create_repository()
                .repo_id(&comparison.repo)
                .repo_type(RepoTypeModel)
                .private(upload.is_private)
                .exist_ok(true);
            created.send().map_err(problem)?;
        }
        let (owner, name) = split_id(&comparison.repo);
        let handler = Handler {
            progress,
            total_bytes: comparison.to_upload().map(|file| file.size_bytes).sum(),
        };
        let files = comparison.to_upload();
        let operations = files.map(|file| CommitOperation::add_file(&file.name, &file.path));
        let commit = client
            .model(owner, name)
            .create_commit()
            .operations(operations.collect())
            .commit_message(upload.message.as_str())
            .revision(comparison.revision.as_str())
            .maybe_parent_commit(comparison.parent.as_deref())
            .progress(handler)
            .send()
            .map_err(problem)?;
        commit
            .commit_oid
            .ok_or_else(|| Problem::UnexpectedResponse("a commit without a hash".to_owned()))
    }

    /// Fetches a range of a file of Xet storage, in chunks that several files may share.
    ///
    /// # Errors
    /// The storage cannot be reached, or sends fewer or more bytes.
    pub(crate) fn fetch(
        config: &HubConfig,
        file: &XetFile<'_>,
        range: Range<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Problem> {
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
}

#[cfg(not(feature = "upload"))]
mod without_crates {
    use std::ops::Range;

    use super::XetFile;
    use crate::config::HubConfig;
    use crate::download::Sink;
    use crate::error::Problem;
    use crate::publish::{Comparison, Upload};

    pub(crate) fn upload(
        _: &HubConfig,
        _: &Comparison,
        _: &Upload,
        _: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<String, Problem> {
        Err(Problem::NoUpload)
    }

    pub(crate) fn fetch(
        _: &HubConfig,
        _: &XetFile<'_>,
        _: Range<u64>,
        _: &mut Sink<'_>,
    ) -> Result<(), Problem> {
        Err(Problem::NoUpload)
    }
}
