//! System limits: behavior with fewer threads or less memory than requested, and when a mapped file is
//! truncated.

use schemas::gguf;
use schemas::threads;

use crate::output;

/// Allocator of both programs; exits cleanly when memory runs out.
#[global_allocator]
static ALLOCATOR: kernels::out_of_memory::ExitOutOfMemory = kernels::out_of_memory::ExitOutOfMemory;

/// Installs the handlers; called once, before any other work.
pub fn install() {
    gguf::exit_on_lost_bytes();
    threads::on_shortage(|shortage| output::warning(shortage));
}
