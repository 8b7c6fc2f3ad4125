//! Verification on backends that observe or break what the CPU computes.

mod broken;
mod forwarding;
mod memory_plan;
