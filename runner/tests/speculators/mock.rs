//! Speculators with scripted behavior.

use kernels::cpu::Cpu;
use runner::Error;
use runner::batch::SeqId;
use runner::speculate::{Committed, DraftRequest, SpecType, Speculator, TargetPass};

/// Drafts the target's tokens except at one position, so that every number of accepted tokens
/// occurs, which random weights alone would not produce.
pub(crate) struct Oracle {
    pub(crate) texts: Vec<Vec<u32>>,
    pub(crate) n_max: usize,
    /// Position of the next wrong token, by text; past the end of a draft, the draft is right.
    pub(crate) wrong: Vec<usize>,
    /// Added to that position after each draft.
    pub(crate) step: usize,
}

impl Speculator<Cpu> for Oracle {
    fn kind(&self) -> SpecType {
        SpecType::DraftSimple
    }

    fn n_max(&self) -> usize {
        self.n_max
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            let known = [request.history, &[request.last]].concat();
            let starts = |text: &Vec<u32>| text.starts_with(&known);
            let i = self.texts.iter().position(starts).unwrap();
            let text = &self.texts[i];
            let end = (known.len() + request.n_max).min(text.len());
            request.draft = text[known.len()..end].to_vec();
            let wrong = self.wrong[i] % (self.n_max + 1);
            self.wrong[i] += self.step;
            if let Some(token) = request.draft.get_mut(wrong) {
                *token = (*token + 1) % 251;
            }
        }
        Ok(())
    }
}

/// Fails after a number of calls.
pub(crate) struct Faulty {
    pub(crate) n_left: usize,
}

impl Faulty {
    fn step(&mut self) -> Result<(), Error> {
        self.n_left = self.n_left.checked_sub(1).ok_or(Error::EmptyPrompt {
            id: "a failure".to_owned(),
        })?;
        Ok(())
    }
}

impl Speculator<Cpu> for Faulty {
    fn kind(&self) -> SpecType {
        SpecType::DraftSimple
    }

    fn n_max(&self) -> usize {
        4
    }

    fn begin(&mut self, _: SeqId, _: &[u32]) -> Result<(), Error> {
        self.step()
    }

    fn process(&mut self, _: &TargetPass<'_, Cpu>) -> Result<(), Error> {
        self.step()
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), Error> {
        for request in requests {
            request.draft = vec![7; request.n_max];
        }
        self.step()
    }

    fn accept(&mut self, _: Committed) -> Result<(), Error> {
        self.step()
    }

    fn truncate(&mut self, _: SeqId, len: u32) -> Result<u32, Error> {
        self.step()?;
        Ok(len)
    }
}
