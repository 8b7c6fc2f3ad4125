//! Limits of the system: what a program does when it gets fewer threads than it asks for.

use schemas::threads;

use crate::output;

/// Prepares the process; called once, before any other work.
pub fn install() {
    threads::on_shortage(|shortage| output::warning(shortage));
}
