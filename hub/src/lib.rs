//! Files of a model hub, downloaded whole or in parts.
//!
//! A [`Hub`] knows the endpoint, the token and the cache folder. [`Hub::open`] resolves a
//! [`Reference`]: its revision becomes a commit, and everything read afterwards is of that commit.
//! A [`Repo`] then has two kinds of files:
//!
//! - Small files are fetched whole ([`Repo::fetch`]) into the cache of the hub's own programs, in
//!   its layout, so that both find each other's files.
//! - Of large files ([`Repo::open`]), only the requested bytes are fetched. They are stored in a
//!   sparse file in that cache, with a record of the ranges present, so that an interrupted run
//!   continues where it stopped. A complete file is checked against its hash and becomes a normal
//!   file of the cache.
//!
//! [`Hub::compare`] compares local files with a repository, and [`Hub::upload`] uploads those that differ, with
//! the feature `upload`. With it, whole files come from Xet storage if the hub offers that.
//!
//! The crate knows nothing of the contents of files, and reads no environment variables. Without the feature
//! `client` it has the same API, but every request fails.

#![forbid(unsafe_code)]

mod agent;
mod cache;
mod config;
mod download;
mod error;
mod hash;
mod http;
mod pieces;
mod publish;
mod reference;
mod remote;
mod repo;
mod xet;

pub use config::{HubConfig, Network, OnRetry, Retry, Timeouts};
pub use error::{Error, Problem};
pub use publish::{CAN_UPLOAD, Change, Comparison, LocalFile, Upload};
pub use reference::{InvalidReference, Reference, SCHEME};
pub use remote::RemoteFile;
pub use repo::{Hub, Repo};
