//! Code that several element types share: blocks, searches of scales, unpacking, cache access.

pub(crate) mod block;
pub(crate) mod cache;
pub(crate) mod fit_affine;
pub(crate) mod fit_grid;
pub(crate) mod fit_positive;
pub(crate) mod fit_symmetric;
pub(crate) mod fit_ternary;
pub(crate) mod grid;
pub(crate) mod grid_points;
pub(crate) mod lines;
pub(crate) mod nibbles;
pub(crate) mod one_pass;
pub(crate) mod superblock;
pub(crate) mod unpack;
pub(crate) mod weights;
