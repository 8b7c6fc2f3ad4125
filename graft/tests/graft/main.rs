//! Splitting and grafting whole models.

mod model;
mod refusals;
mod roundtrip;
