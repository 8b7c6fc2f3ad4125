//! Puts files together: a target, its tokenizer, and the speculators that draft for it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kernels::backend::Backend;
use schemas::arch::Hparams;
use schemas::gguf::{self, Plan};

use crate::cache::CacheConfig;
use crate::context::{Context, ContextConfig};
use crate::error::{Error, ModelError};
use crate::model::{Model, check_values, load_mtp_head, load_target};
use crate::speculate::{
    DraftModel, Driver, Mtp, NgramMaps, NgramMod, NgramModConfig, NgramSimple, Request, SpecType,
    Speculator, Values,
};
use crate::tokenizer::Tokenizer;

/// Tokens of one pass while a prompt is read.
pub(crate) const N_BATCH: usize = 512;

/// The files of a run, opened and checked but not yet loaded.
pub struct Files {
    /// The target.
    pub model: Opened,
    /// The draft model, or the sidecar with the target's MTP head.
    pub draft: Option<Opened>,
    /// The target's tokenizer.
    pub tokenizer: Tokenizer,
}

/// A model file.
pub struct Opened {
    /// Where it is.
    pub path: PathBuf,
    /// What it holds.
    pub plan: Plan,
    /// The numbers that size it.
    pub hparams: Hparams,
    /// Set once the values have been looked at.
    checked: OnceLock<()>,
}

/// Sizes of a run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Speculators, in the order in which they are asked.
    pub spec_types: Vec<SpecType>,
    /// Longest draft of a model.
    pub n_draft_max: usize,
    /// Sequences at once.
    pub n_seq: usize,
    /// Positions of each.
    pub n_ctx: usize,
}

impl Opened {
    /// Opens a file and reads the numbers that size its model.
    ///
    /// # Errors
    /// The file is unreadable, invalid, or of an unknown architecture.
    pub fn new(path: &Path) -> Result<Opened, Error> {
        let plan = gguf::open(path)?;
        let hparams = Hparams::from_metadata(&plan.metadata).map_err(|e| at(path, e))?;
        Ok(Opened {
            path: path.to_path_buf(),
            plan,
            hparams,
            checked: OnceLock::new(),
        })
    }

    /// Refuses weights that no model can have; reads the file the first time only.
    pub(crate) fn check_values(&self) -> Result<(), Error> {
        if self.checked.get().is_none() {
            check_values(&self.plan).map_err(|e| self.error(e))?;
            self.checked.get_or_init(|| ());
        }
        Ok(())
    }

    /// An error of this file.
    pub(crate) fn error(&self, source: impl Into<ModelError>) -> Error {
        at(&self.path, source)
    }
}

/// An error of that file.
fn at(path: &Path, source: impl Into<ModelError>) -> Error {
    Error::Model {
        path: path.to_path_buf(),
        source: source.into(),
    }
}

impl Files {
    /// Opens the target and, if there is one, the draft.
    ///
    /// # Errors
    /// A file is unreadable, invalid, or of an unknown architecture or tokenizer.
    pub fn open(model: &Path, draft: Option<&Path>) -> Result<Files, Error> {
        let model = Opened::new(model)?;
        let tokenizer =
            Tokenizer::from_metadata(&model.plan.metadata).map_err(|e| at(&model.path, e))?;
        let draft = draft.map(Opened::new).transpose()?;
        Ok(Files {
            model,
            draft,
            tokenizer,
        })
    }

    /// What the files can draft with: a draft model, an MTP head in a sidecar or inline.
    pub fn default_spec_types(&self) -> Vec<SpecType> {
        let has_head = |file: &Opened| file.hparams.n_mtp() > 0;
        let mut types = Vec::new();
        if self.draft.as_ref().is_some_and(|draft| !has_head(draft)) {
            types.push(SpecType::DraftSimple);
        }
        if has_head(&self.model) || self.draft.as_ref().is_some_and(has_head) {
            types.push(SpecType::DraftMtp);
        }
        types
    }

    /// Positions that these texts need, but no more than the target was trained for.
    pub fn n_ctx(&self, requests: &[Request]) -> usize {
        let lengths = requests
            .iter()
            .map(|request| request.tokens.len().saturating_add(request.n_predict));
        let longest = lengths.max().unwrap_or_default();
        longest.min(self.model.hparams.n_ctx_train as usize)
    }

    /// Loads weights and allocates caches.
    ///
    /// # Errors
    /// A tensor is missing or unusable, or a speculator lacks what it drafts with.
    pub fn driver<B: Backend>(
        &self,
        backend: &Arc<B>,
        config: &RunConfig,
    ) -> Result<Driver<B>, Error> {
        self.model.check_values()?;
        self.draft.iter().try_for_each(Opened::check_values)?;
        let speculators = config
            .spec_types
            .iter()
            .map(|&kind| self.speculator(backend, kind, config))
            .collect::<Result<Vec<_>, _>>()?;
        let n_rollback = speculators.iter().map(|s| s.n_max()).max().unwrap_or(0);
        let model =
            load_target(&**backend, &self.model.plan).map_err(|e| at(&self.model.path, e))?;
        let target = self.context(backend, &self.model.path, model, config, n_rollback)?;
        Ok(Driver::new(target, speculators))
    }

    fn context<B: Backend>(
        &self,
        backend: &Arc<B>,
        path: &Path,
        model: Model<B>,
        config: &RunConfig,
        n_rollback: usize,
    ) -> Result<Context<B>, Error> {
        let RunConfig { n_seq, n_ctx, .. } = *config;
        let n_outputs = n_seq * (n_rollback + 1);
        let cache = CacheConfig {
            n_seq,
            n_ctx,
            n_rollback,
        };
        let sizes = ContextConfig {
            cache,
            n_batch: N_BATCH.max(n_outputs),
            n_outputs,
        };
        Context::new(Arc::clone(backend), model, sizes).map_err(|e| at(path, e))
    }

    fn speculator<B: Backend>(
        &self,
        backend: &Arc<B>,
        kind: SpecType,
        config: &RunConfig,
    ) -> Result<Box<dyn Speculator<B>>, Error> {
        let n_max = config.n_draft_max;
        let needs = |needs: &str| Error::SpeculatorNeeds {
            name: kind.name(),
            needs: needs.to_owned(),
        };
        Ok(match kind {
            SpecType::NgramSimple => Box::new(NgramSimple::default()),
            SpecType::NgramMapK => Box::new(NgramMaps::new(Values::Latest, config.n_seq)),
            SpecType::NgramMapK4v => Box::new(NgramMaps::new(
                Values::Counted { min_hits: 1 },
                config.n_seq,
            )),
            SpecType::NgramMod => Box::new(NgramMod::new(NgramModConfig::default(), config.n_seq)),
            SpecType::DraftMtp => {
                let sidecar = self
                    .draft
                    .as_ref()
                    .filter(|draft| draft.hparams.n_mtp() > 0);
                let file = sidecar.unwrap_or(&self.model);
                self.check_fit(file)?;
                let head = load_mtp_head(&**backend, &file.plan).map_err(|e| at(&file.path, e))?;
                Box::new(Mtp::new(
                    self.context(backend, &file.path, head, config, n_max)?,
                    n_max,
                ))
            }
            SpecType::DraftSimple => {
                let file = self
                    .draft
                    .as_ref()
                    .ok_or_else(|| needs("a draft model (-md FILE)"))?;
                self.check_fit(file)?;
                let model = load_target(&**backend, &file.plan).map_err(|e| at(&file.path, e))?;
                let context = self.context(backend, &file.path, model, config, n_max)?;
                Box::new(DraftModel::new(context, n_max))
            }
        })
    }

    /// Refuses a draft whose token ids, or hidden states, mean something else to the target.
    fn check_fit(&self, draft: &Opened) -> Result<(), Error> {
        let target = &self.model;
        let differ = |what, draft_has: String, target_has: String| Error::DraftMismatch {
            path: draft.path.clone(),
            what,
            draft: draft_has,
            target: target_has,
        };
        let (a, b) = (draft.hparams.n_vocab, target.hparams.n_vocab);
        if a != b {
            return Err(differ("vocabulary size", a.to_string(), b.to_string()));
        }
        let tokens = |file: &Opened| -> Result<Vec<bstr::BString>, Error> {
            let key = schemas::arch::keys::TOKENS;
            let found = file
                .plan
                .metadata
                .strings(key)
                .map_err(|e| at(&file.path, e))?;
            Ok(found.unwrap_or_default().to_vec())
        };
        let (ours, theirs) = (tokens(draft)?, tokens(target)?);
        if let Some(id) = (0..ours.len().min(theirs.len())).find(|&i| ours[i] != theirs[i]) {
            let text = |tokens: &[bstr::BString]| format!("token {id} = {:?}", tokens[id]);
            return Err(differ("the token table", text(&ours), text(&theirs)));
        }
        // A sidecar without an output head would quietly project with the embedding instead.
        let has_head = |file: &Opened| {
            let is_head = |name: &str| {
                name == "output.weight" || name.ends_with("nextn.shared_head_head.weight")
            };
            file.plan.tensors.iter().any(|tensor| is_head(&tensor.name))
        };
        if draft.hparams.n_mtp() > 0 && has_head(target) && !has_head(draft) {
            let (a, b) = ("absent".to_owned(), "present".to_owned());
            return Err(differ("output.weight", a, b));
        }
        if draft.hparams.n_mtp() > 0 && draft.hparams.n_embd != target.hparams.n_embd {
            let (a, b) = (draft.hparams.n_embd, target.hparams.n_embd);
            return Err(differ("embedding_length", a.to_string(), b.to_string()));
        }
        Ok(())
    }
}
