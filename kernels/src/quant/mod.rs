//! Block codecs: one file per type, one list of them all.
