//! Files of a model hub, whole or in parts.
//!
//! A [`Hub`] knows where the hub is, who asks, and where files are kept. [`Hub::open`] settles
//! what a [`Reference`] means: its revision becomes a commit, which stays the same for everything
//! that is read afterwards. A [`Repo`] then has two kinds of files:
//!
//! - small ones, fetched whole ([`Repo::fetch`]) into the cache that the hub's own programs use,
//!   in its layout, so that either side finds what the other has;
//! - large ones ([`Repo::open`]), of which only the bytes that are asked for are fetched. They go to a
//!   sparse file in that cache, with a record of the ranges it has, so that an interrupted run
//!   goes on where it stopped. A file that becomes whole is checked against its hash and joins
//!   the cache.
//!
//! Knows nothing of what the files hold, and reads no environment variables.

#![forbid(unsafe_code)]

mod cache;
mod config;
mod download;
mod error;
mod hash;
mod http;
mod pieces;
mod reference;
mod remote;
mod repo;

pub use config::{HubConfig, Network, OnRetry, Retry, Timeouts};
pub use error::{Error, Problem};
pub use reference::{InvalidReference, Reference, SCHEME};
pub use remote::RemoteFile;
pub use repo::{Hub, Repo};
