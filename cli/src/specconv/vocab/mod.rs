//! Commands for the vocabularies of drafts.

pub(super) mod graft;
pub(super) mod map;
mod map_file;
pub(super) mod split;
pub(super) mod trim;
