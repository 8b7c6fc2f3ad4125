//! [`Recorder`].

use std::cell::RefCell;
use std::rc::Rc;

use kernels::backend::Backend;
use kernels::cpu::Cpu;
use runner::Error;
use runner::batch::SeqId;
use runner::context::Context;
use runner::speculate::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// Records the drafts of another speculator.
pub(crate) struct Recorder<B: Backend = Cpu> {
    pub(crate) speculator: Box<dyn Speculator<B>>,
    pub(crate) drafts: Rc<RefCell<Vec<Vec<u32>>>>,
}

impl<B: Backend> Speculator<B> for Recorder<B> {
    fn kind(&self) -> SpecType {
        self.speculator.kind()
    }

    fn n_max(&self) -> usize {
        self.speculator.n_max()
    }

    fn begin(&mut self, seq: SeqId, prompt: &[u32]) -> Result<(), Error> {
        self.speculator.begin(seq, prompt)
    }

    fn process(&mut self, pass: &TargetPass<'_, B>) -> Result<(), Error> {
        self.speculator.process(pass)
    }

    fn draft(&mut self, _: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        unreachable!("the driver lends the target")
    }

    fn draft_beside(
        &mut self,
        target: &mut Context<B>,
        requests: &mut [DraftRequest<'_>],
    ) -> Result<(), Error> {
        self.speculator.draft_beside(target, requests)?;
        let drafts = requests.iter().map(|request| request.draft.clone());
        self.drafts.borrow_mut().extend(drafts);
        Ok(())
    }

    fn accept(&mut self, committed: Committed) -> Result<(), Error> {
        self.speculator.accept(committed)
    }

    fn truncate(&mut self, seq: SeqId, len: u32) -> Result<u32, Error> {
        self.speculator.truncate(seq, len)
    }
}
