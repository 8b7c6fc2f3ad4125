//! [`LoadedModels`]: the weights of a run's files, each loaded once, for any number of drivers.

use std::rc::Rc;
use std::sync::Arc;

use kernels::backend::Backend;

use crate::context::{Context, ContextConfig};
use crate::error::Error;
use crate::memory_check::check_model;
use crate::model::{Fusion, Loader, Model, load_target};
use crate::model_files::{DraftFile, Files, ModelFile};
use crate::observe::InputObserver;
use crate::run_config::RunConfig;
use crate::speculate::latency_model::Monotonic;
use crate::speculate::{DraftKind, DraftLength, DraftParts, Driver, Parts, SpecType, Speculator};

/// A target and its draft models, with loaded weights.
pub struct LoadedModels<'a, B: Backend> {
    files: &'a Files,
    backend: Arc<B>,
    target: Arc<Model<B>>,
    drafts: Vec<Draft<'a, B>>,
}

/// The weights of one speculator.
struct Draft<'a, B: Backend> {
    kind: SpecType,
    weights: Option<DraftWeights<'a, B>>,
}

struct DraftWeights<'a, B: Backend> {
    file: DraftFile<'a>,
    model: Arc<Model<B>>,
    /// Fusion of an EAGLE-3 draft.
    fusion: Option<Arc<Fusion<B>>>,
}

impl<'a, B: Backend> LoadedModels<'a, B> {
    /// Loads the weights of the target and of the speculators of these runs, which will run one
    /// after another.
    ///
    /// # Errors
    /// There is not enough memory for a run, a tensor is missing or unusable, or a speculator lacks
    /// its draft file.
    pub fn new(
        files: &'a Files,
        backend: &Arc<B>,
        runs: &[RunConfig],
    ) -> Result<LoadedModels<'a, B>, Error> {
        files.check_memory(&**backend, runs)?;
        files.model.check_values()?;
        files.drafts.iter().try_for_each(ModelFile::check_values)?;
        let loader = Loader::new(&**backend);
        let mut drafts: Vec<Draft<'a, B>> = Vec::new();
        for &kind in runs.iter().flat_map(|run| &run.spec_types) {
            if drafts.iter().all(|draft| draft.kind != kind) {
                drafts.push(load_draft(files, &loader, kind)?);
            }
        }
        let target = loader.target(&files.model.plan);
        let mut target = target.map_err(|e| files.model.error(e))?;
        let kinds: Vec<SpecType> = drafts.iter().map(|draft| draft.kind).collect();
        target.taps = files.taps(&kinds)?;
        files.check_unchanged()?;
        Ok(LoadedModels {
            files,
            backend: Arc::clone(backend),
            target: Arc::new(target),
            drafts,
        })
    }

    /// Creates a driver with caches and the speculators of the run, whose weights must be loaded.
    ///
    /// # Errors
    /// The caches exceed the address space.
    pub fn driver(&self, config: &RunConfig) -> Result<Driver<B>, Error> {
        let speculators = config
            .spec_types
            .iter()
            .map(|&kind| self.speculator(kind, config))
            .collect::<Result<Vec<_>, _>>()?;
        let sizes = self.files.target_sizes::<B>(config)?;
        let target = self.target(sizes.config)?;
        let driver = Driver::new(target, speculators, config.policy);
        Ok(match config.drafting.length {
            DraftLength::Fixed => driver,
            DraftLength::Automatic => driver.with_automatic_length(Rc::<Monotonic>::default()),
        })
    }

    /// Returns the multiply-adds of a speculator for a prompt of `n` tokens, relative to the
    /// target's; 0 without a model.
    pub fn prompt_work(&self, kind: SpecType, n: u64) -> f64 {
        let drafts = self.drafts.iter().filter(|draft| draft.kind == kind);
        let weights = drafts.filter_map(|draft| draft.weights.as_ref());
        let added: u64 = weights
            .map(|weights| weights.model.prompt_multiply_adds(n))
            .sum();
        added as f64 / self.target.prompt_multiply_adds(n) as f64
    }

    /// Creates a context of the target, with caches of these sizes.
    ///
    /// # Errors
    /// The caches exceed the address space.
    pub fn target(&self, sizes: ContextConfig) -> Result<Context<B>, Error> {
        self.target_on(&self.backend, sizes)
    }

    /// Creates a context of the target on another backend of the same kind.
    ///
    /// # Errors
    /// The caches exceed the address space.
    pub fn target_on(&self, backend: &Arc<B>, sizes: ContextConfig) -> Result<Context<B>, Error> {
        let context = Context::new(Arc::clone(backend), Arc::clone(&self.target), sizes);
        context.map_err(|e| self.files.model.error(e))
    }

    fn speculator(
        &self,
        kind: SpecType,
        config: &RunConfig,
    ) -> Result<Box<dyn Speculator<B>>, Error> {
        let loaded = self.drafts.iter().find(|draft| draft.kind == kind);
        let draft = match loaded.and_then(|draft| draft.weights.as_ref()) {
            Some(weights) => Some(DraftParts {
                context: self.draft_context(weights, config)?,
                fusion: weights.fusion.clone(),
            }),
            None => None,
        };
        Ok(kind.build(Parts {
            config: &config.drafting,
            n_seq: config.n_seq,
            lookup: &self.files.lookup,
            vocab_map: self.files.vocab_map.as_ref().map(|file| &file.map),
            draft,
        }))
    }

    fn draft_context(
        &self,
        weights: &DraftWeights<'_, B>,
        config: &RunConfig,
    ) -> Result<Context<B>, Error> {
        let DraftWeights { file, model, .. } = weights;
        let sizes = self.files.draft_sizes::<B>(*file, config)?;
        let context = Context::new(Arc::clone(&self.backend), Arc::clone(model), sizes.config);
        context.map_err(|e| file.file.error(e))
    }
}

/// Loads the weights of one run and creates its driver.
///
/// # Errors
/// See [`LoadedModels::new`] and [`LoadedModels::driver`].
pub fn load_driver<B: Backend>(
    files: &Files,
    backend: &Arc<B>,
    config: &RunConfig,
) -> Result<Driver<B>, Error> {
    LoadedModels::new(files, backend, std::slice::from_ref(config))?.driver(config)
}

/// Loads a model (without its MTP head) with caches of these sizes.
///
/// # Errors
/// There is not enough memory, or the model cannot be used.
pub fn load_context<B: Backend>(
    file: &ModelFile,
    backend: &Arc<B>,
    sizes: ContextConfig,
) -> Result<Context<B>, Error> {
    check_model(&**backend, file, sizes.cache)?;
    file.check_values()?;
    let model = load_target(&**backend, &file.plan).map_err(|e| file.error(e))?;
    file.plan.check_unchanged()?;
    Context::new(Arc::clone(backend), model, sizes).map_err(|e| file.error(e))
}

fn load_draft<'a, B: Backend>(
    files: &'a Files,
    loader: &Loader<'_, B>,
    kind: SpecType,
) -> Result<Draft<'a, B>, Error> {
    let Some(draft) = files.draft_file(kind)? else {
        return Ok(Draft {
            kind,
            weights: None,
        });
    };
    files.check_draft(draft)?;
    let plan = &draft.file.plan;
    let loaded = match draft.draft_kind() {
        DraftKind::Model => loader.target(plan).map(|model| (model, None)),
        DraftKind::Mtp => loader.mtp_head(plan).map(|head| (head, None)),
        DraftKind::Assistant => loader
            .assistant(plan, &files.model.plan)
            .map(|model| (model, None)),
        DraftKind::Dflash | DraftKind::Dspark => loader
            .block_draft(plan, &files.model.plan)
            .map(|(model, fusion)| (model, Some(Arc::new(fusion)))),
        DraftKind::Eagle3 => loader
            .eagle3(plan, &files.model.plan)
            .map(|(model, fusion)| (model, Some(Arc::new(fusion)))),
    };
    let (model, fusion) = loaded.map_err(|e| draft.file.error(e))?;
    Ok(Draft {
        kind,
        weights: Some(DraftWeights {
            file: draft,
            model: Arc::new(model),
            fusion,
        }),
    })
}

/// A target whose inputs are observed, or that a draft follows whose inputs are observed.
pub struct ObservedModels<B: Backend> {
    /// The target.
    pub target: Context<B>,
    /// The draft.
    pub draft: Option<ObservedDraft<B>>,
}

/// A draft whose inputs are observed.
pub struct ObservedDraft<B: Backend> {
    /// Kind of the draft.
    pub kind: DraftKind,
    /// Its context.
    pub context: Context<B>,
    /// The fusion of the target's hidden states, if the draft has one.
    pub fusion: Option<Arc<Fusion<B>>>,
}

/// Loads a model and a draft with an observer: of both if the draft is an MTP head, else of the draft alone,
/// since the tensors of other drafts have the names of the target's.
///
/// # Errors
/// There is not enough memory, a model cannot be used, or the draft does not fit the target.
pub fn load_observed<B: Backend>(
    files: &Files,
    backend: &Arc<B>,
    draft: Option<SpecType>,
    sizes: ContextConfig,
    observer: &Arc<dyn InputObserver>,
) -> Result<ObservedModels<B>, Error> {
    check_model(&**backend, &files.model, sizes.cache)?;
    files.model.check_values()?;
    files.drafts.iter().try_for_each(ModelFile::check_values)?;
    let file = draft.map(|kind| files.draft_file(kind)).transpose()?;
    let file = file.flatten();
    let mut loader = Loader::new(&**backend);
    let is_observed = file.is_none_or(|file| file.model.kind == DraftKind::Mtp);
    loader.observe(is_observed.then(|| Arc::clone(observer)));
    let target = loader.target(&files.model.plan);
    let mut target = target.map_err(|e| files.model.error(e))?;
    loader.observe(Some(Arc::clone(observer)));
    let mut observed = None;
    if let Some(draft) = file {
        let loaded = load_draft(files, &loader, draft.kind)?;
        let weights = loaded.weights.expect("the speculator has a model");
        let mut sizes = sizes;
        if let Some(features) = &draft.file.hparams.features {
            target.taps.clone_from(&features.layers);
            if let Some(block) = &features.block {
                sizes.cache.n_ctx += block.size as usize;
                sizes.n_batch = sizes.n_batch.max(block.size as usize);
            }
        }
        let context = Context::new(Arc::clone(backend), weights.model, sizes);
        observed = Some(ObservedDraft {
            kind: draft.model.kind,
            context: context.map_err(|e| draft.file.error(e))?,
            fusion: weights.fusion,
        });
    }
    files.check_unchanged()?;
    let target = Context::new(Arc::clone(backend), target, sizes);
    Ok(ObservedModels {
        target: target.map_err(|e| files.model.error(e))?,
        draft: observed,
    })
}
