//! [`Arena`]: scratch memory of an operation or of one of its tasks.

use std::cell::RefCell;
use std::mem::{self, MaybeUninit};
use std::ops::Deref;

use bumpalo::Bump;

thread_local! {
    /// Unused arenas of this thread.
    static IDLE: RefCell<Vec<Bump>> = const { RefCell::new(Vec::new()) };
}

/// Scratch memory that returns to its thread when it is dropped: after the first pass of a model, passes do
/// not allocate. Each operation has its own arena, and so has each task.
pub(crate) struct Arena(Bump);

impl Arena {
    pub(crate) fn new() -> Arena {
        Arena(IDLE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }

    /// Allocates `n` copies of a value.
    #[inline(always)]
    pub(crate) fn filled<T: Copy>(&self, value: T, n: usize) -> &mut [T] {
        self.0.alloc_slice_fill_copy(n, value)
    }

    /// Allocates room for `n` values without filling it.
    pub(crate) fn room<T: Copy>(&self, n: usize) -> &mut [MaybeUninit<T>] {
        self.0.alloc_slice_fill_with(n, |_| MaybeUninit::uninit())
    }
}

impl Deref for Arena {
    type Target = Bump;

    fn deref(&self) -> &Bump {
        &self.0
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut memory = mem::take(&mut self.0);
        memory.reset();
        // A thread that is exiting frees the memory.
        let _ = IDLE.try_with(|idle| idle.borrow_mut().push(memory));
    }
}
