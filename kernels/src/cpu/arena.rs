//! [`Arena`]: memory for what an operation, or a task of it, needs only while it runs.

use std::cell::RefCell;
use std::mem;
use std::ops::Deref;

use bumpalo::Bump;

thread_local! {
    /// The memory of this thread that nobody uses.
    static IDLE: RefCell<Vec<Bump>> = const { RefCell::new(Vec::new()) };
}

/// Memory of this thread, which is kept for the next one who asks: once a model has run, its passes
/// allocate nothing. An operation has its own, and so has each task that its thread works off.
pub(super) struct Arena(Bump);

impl Arena {
    pub(super) fn new() -> Arena {
        Arena(IDLE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }

    /// So many times a value.
    #[inline(always)]
    pub(super) fn filled<T: Copy>(&self, value: T, n: usize) -> &mut [T] {
        self.0.alloc_slice_fill_copy(n, value)
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
        // A thread that ends keeps nothing.
        let _ = IDLE.try_with(|idle| idle.borrow_mut().push(memory));
    }
}
