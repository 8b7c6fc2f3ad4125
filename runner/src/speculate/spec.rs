//! [`Spec`]: the description of a speculator. Memory estimates, file selection, loading and checks
//! decide by its fields, never by which speculator it is.

use std::sync::Arc;

use kernels::backend::Backend;
use schemas::arch::Hparams;
use schemas::vocab::VocabMap;

use crate::context::Context;
use crate::model::Fusion;

use super::DraftConfig;
use super::lookup::LookupFiles;

/// The description of a speculator.
#[derive(Debug)]
pub struct Spec {
    /// The name used on the command line and in reports.
    pub name: &'static str,
    /// Acceptance rate that it must reach at the first position of its drafts; `None` if the rate
    /// depends on the text alone.
    pub acceptance_floor: Option<f64>,
    /// The model that it drafts with, if it has one.
    pub model: Option<ModelSpec>,
    /// Returns the maximum draft length in tokens, at most [`MAX_DRAFT`](crate::context::MAX_DRAFT).
    pub n_max: fn(&DraftConfig) -> usize,
    /// Returns the initial bytes of its tables for a number of sequences.
    pub table_bytes: fn(usize, &LookupFiles) -> usize,
}

impl Spec {
    /// Describes a trained draft in a file of its own that reads hidden states of the target.
    pub(super) const fn with_features(
        name: &'static str,
        kind: DraftKind,
        missing: &'static str,
    ) -> Spec {
        Spec {
            name,
            // Trained drafts are slightly below MTP heads, for any text.
            acceptance_floor: Some(0.3),
            model: Some(ModelSpec {
                kind,
                other_file: None,
                in_target: false,
                missing,
                reads_hidden_states: true,
                takes_vocab_map: false,
            }),
            n_max: model_n_max,
            table_bytes: no_tables,
        }
    }
}

/// The model of a speculator.
#[derive(Debug)]
pub struct ModelSpec {
    /// The kind of model, and of the file that has it.
    pub kind: DraftKind,
    /// Another kind of file that has such a model, used if there is none of the first kind.
    pub other_file: Option<DraftKind>,
    /// True if the target's own file has the model unless a draft file does.
    pub in_target: bool,
    /// The file that is missing, for the error message.
    pub missing: &'static str,
    /// True if it reads hidden states of the target.
    pub reads_hidden_states: bool,
    /// True if it can draft in another vocabulary, through a vocabulary map.
    pub takes_vocab_map: bool,
}

/// The kind of draft in a model file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// A whole model.
    Model,
    /// An MTP head.
    Mtp,
    /// A draft that attends to the target's keys and values.
    Assistant,
    /// An EAGLE-3 draft.
    Eagle3,
    /// A draft that proposes a block of tokens.
    Dflash,
    /// A draft that proposes a block of tokens, each of which depends on the one before.
    Dspark,
}

impl DraftKind {
    /// Returns the kind of draft that a file with these hyperparameters has.
    pub(crate) fn of(hparams: &Hparams) -> DraftKind {
        if hparams.assistant.is_some() {
            return DraftKind::Assistant;
        }
        match (&hparams.features, hparams.n_mtp()) {
            (Some(features), _) => match features.block {
                None => DraftKind::Eagle3,
                Some(block) if block.markov_rank == 0 => DraftKind::Dflash,
                Some(_) => DraftKind::Dspark,
            },
            (None, 0) => DraftKind::Model,
            (None, _) => DraftKind::Mtp,
        }
    }
}

/// Draft length of speculators with a model.
pub(super) fn model_n_max(config: &DraftConfig) -> usize {
    config.limits.n_max
}

/// Table size of speculators without tables.
pub(super) fn no_tables(_n_seq: usize, _files: &LookupFiles) -> usize {
    0
}

/// Parts of a run from which speculators are built.
pub(crate) struct Parts<'a, B: Backend> {
    /// Configuration of drafting.
    pub(crate) config: &'a DraftConfig,
    /// Number of parallel sequences.
    pub(crate) n_seq: usize,
    /// Lookup files.
    pub(crate) lookup: &'a Arc<LookupFiles>,
    /// Map between the vocabularies of the target and the draft model.
    pub(crate) vocab_map: Option<&'a VocabMap>,
    /// The draft's context, if [`Spec::model`] asks for one.
    pub(crate) draft: Option<DraftParts<B>>,
}

/// A loaded draft.
pub(crate) struct DraftParts<B: Backend> {
    /// Context of the draft model.
    pub(crate) context: Context<B>,
    /// Fusion of a draft that reads several hidden states of the target.
    pub(crate) fusion: Option<Arc<Fusion<B>>>,
}

impl<B: Backend> Parts<'_, B> {
    /// Moves the context of the draft out.
    pub(super) fn context(&mut self) -> Context<B> {
        self.draft().context
    }

    /// Moves the context and the fusion of a draft that reads several hidden states out.
    pub(super) fn fused(&mut self) -> (Context<B>, Arc<Fusion<B>>) {
        let DraftParts { context, fusion } = self.draft();
        let fusion =
            fusion.expect("a draft that reads several hidden states is loaded with its fusion");
        (context, fusion)
    }

    /// Moves the draft out.
    fn draft(&mut self) -> DraftParts<B> {
        let draft = self.draft.take();
        draft.expect("the draft of a speculator with a model is loaded first")
    }
}
