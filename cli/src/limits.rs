//! Limits of the system: what a program does when it gets fewer threads or less memory than it asks for,
//! or loses the bytes of a file.

use schemas::gguf;
use schemas::threads;

use crate::output;

/// Memory of both programs.
#[global_allocator]
static ALLOCATOR: kernels::out_of_memory::ExitOutOfMemory = kernels::out_of_memory::ExitOutOfMemory;

/// Prepares the process; called once, before any other work.
pub fn install() {
    gguf::exit_on_lost_bytes();
    threads::on_shortage(|shortage| output::warning(shortage));
}
