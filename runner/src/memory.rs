//! Where what is not a cache gets its memory: from a backend, or from nowhere, to be counted. One
//! constructor serves both, so what is told beforehand is what is taken.

use std::cell::Cell;

use kernels::backend::Backend;

/// What hands out memory: every [`Backend`], and [`Counted`].
pub trait Memory {
    /// `f32` elements.
    type Floats;
    /// Which experts each row has chosen.
    type Routes;
    /// Tokens that were chosen.
    type Tokens;

    /// Elements that are kept from pass to pass.
    fn kept(&self, len: usize) -> Self::Floats;

    /// Elements of passes, most of which are shorter than there is room for.
    fn passing(&self, len: usize) -> Self::Floats;

    /// The choice of `n_used` experts for each of `n` rows.
    fn choices(&self, n: usize, n_used: usize) -> Self::Routes;

    /// `n` tokens with the logits that they were chosen by.
    fn tokens(&self, n: usize) -> Self::Tokens;
}

impl<B: Backend> Memory for B {
    type Floats = B::Buffer;
    type Routes = B::Routes;
    type Tokens = B::Chosen;

    fn kept(&self, len: usize) -> B::Buffer {
        self.buffer(len)
    }

    fn passing(&self, len: usize) -> B::Buffer {
        self.scratch(len)
    }

    fn choices(&self, n: usize, n_used: usize) -> B::Routes {
        self.routes(n, n_used)
    }

    fn tokens(&self, n: usize) -> B::Chosen {
        self.chosen(n)
    }
}

/// Counts what would be handed out.
#[derive(Debug, Default)]
pub struct Counted {
    bytes: Cell<u64>,
}

impl Counted {
    /// Bytes of all that would have been handed out.
    pub fn of<T>(take: impl FnOnce(&Counted) -> T) -> u64 {
        let counted = Counted::default();
        take(&counted);
        counted.bytes.get()
    }

    fn count(&self, n: usize, element_bytes: usize) {
        let bytes = (n as u64).saturating_mul(element_bytes as u64);
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }
}

impl Memory for Counted {
    type Floats = ();
    type Routes = ();
    type Tokens = ();

    fn kept(&self, len: usize) {
        self.count(len, size_of::<f32>());
    }

    fn passing(&self, len: usize) {
        self.count(len, size_of::<f32>());
    }

    /// An expert's number, and how much it counts.
    fn choices(&self, n: usize, n_used: usize) {
        self.count(
            n.saturating_mul(n_used),
            size_of::<u32>() + size_of::<f32>(),
        );
    }

    fn tokens(&self, n: usize) {
        self.count(n, size_of::<u32>() + size_of::<f32>());
    }
}
