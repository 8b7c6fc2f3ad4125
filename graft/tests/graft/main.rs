//! Tests of splitting and grafting whole models.

mod families;
mod faults;
mod model;
mod pairing;
mod refusals;
mod roundtrip;
