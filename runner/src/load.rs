//! Puts files together: a target, its tokenizer, and the speculators that draft for it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use kernels::backend::Backend;
use schemas::arch::{Hparams, keys};
use schemas::gguf::{self, Plan};
use schemas::vocab::{VocabMap, Vocabulary};

use crate::cache::CacheConfig;
use crate::context::{Context, ContextConfig};
use crate::error::{Error, ModelError};
use crate::model::{Model, check_values, load_eagle3, load_mtp_head, load_target};
use crate::speculate::lookup::Lookup;
use crate::speculate::{
    ChainConfig, DraftModel, Driver, Eagle3, LookupFiles, Mtp, NgramCache, NgramMaps, NgramMod,
    NgramModConfig, NgramSimple, Policy, Request, SpecType, Speculator, TranslatedDraft, Values,
};
use crate::tokenizer::Tokenizer;

/// Tokens of one pass while a prompt is read.
pub(crate) const N_BATCH: usize = 512;
/// Longest draft of any speculator, which every context has room to follow.
pub const MAX_DRAFT: usize = 64;
/// Tokens of another tokenizer for each of the target's, on average, that there is room for.
const TRANSLATED_LENGTH: usize = 4;

/// The files of a run, opened and checked but not yet loaded.
pub struct Files {
    /// The target.
    pub model: Opened,
    /// Draft models, EAGLE-3 drafts, sidecars with the target's MTP head.
    pub drafts: Vec<Opened>,
    /// For a draft model with another tokenizer.
    pub vocab_map: Option<OpenedMap>,
    /// For `ngram-cache`.
    pub lookup: Arc<LookupFiles>,
    /// The target's tokenizer.
    pub tokenizer: Tokenizer,
}

/// A vocabulary map.
pub struct OpenedMap {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub map: VocabMap,
}

/// What speculators draft with beside the target.
#[derive(Clone, Debug, Default)]
pub struct DraftFiles {
    /// Model files; of those that could serve a speculator, the first one does.
    pub models: Vec<PathBuf>,
    /// Translates between the tokens of the target and those of a draft model.
    pub vocab_map: Option<PathBuf>,
    /// What followed pairs of tokens in a large corpus.
    pub lookup_static: Option<PathBuf>,
    /// What followed in texts written before.
    pub lookup_dynamic: Option<PathBuf>,
}

impl DraftFiles {
    /// All of them.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let rest = [&self.vocab_map, &self.lookup_static, &self.lookup_dynamic];
        self.models.iter().chain(rest.into_iter().flatten())
    }
}

/// What a model file can draft with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DraftKind {
    /// Its trunk.
    Model,
    /// Its MTP head.
    Mtp,
    /// A layer that sees the target's hidden states.
    Eagle3,
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
    /// Which draft is checked where several have one.
    pub policy: Policy,
    /// How long the drafts of a model are.
    pub chain: ChainConfig,
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
        let hparams = Hparams::from_plan(&plan).map_err(|e| at(path, e))?;
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

    fn draft_kind(&self) -> DraftKind {
        match (&self.hparams.features, self.hparams.n_mtp()) {
            (Some(_), _) => DraftKind::Eagle3,
            (None, 0) => DraftKind::Model,
            (None, _) => DraftKind::Mtp,
        }
    }

    /// An error of this file.
    pub(crate) fn error(&self, source: impl Into<ModelError>) -> Error {
        at(&self.path, source)
    }
}

fn open_map(path: &Path) -> Result<OpenedMap, Error> {
    let plan = gguf::open(path)?;
    let path = path.to_path_buf();
    match VocabMap::from_plan(&plan) {
        Ok(map) => Ok(OpenedMap { path, map }),
        Err(source) => Err(Error::VocabMap { path, source }),
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
    /// Opens the target and what drafts for it.
    ///
    /// # Errors
    /// A file is unreadable, invalid, or of an unknown architecture or tokenizer.
    pub fn open(model: &Path, drafts: &DraftFiles) -> Result<Files, Error> {
        let model = Opened::new(model)?;
        let tokenizer =
            Tokenizer::from_metadata(&model.plan.metadata).map_err(|e| at(&model.path, e))?;
        let n_vocab = model.hparams.n_vocab as usize;
        let lookup = |path: &Option<PathBuf>| match path {
            Some(path) => Lookup::read(path, n_vocab),
            None => Ok(Lookup::default()),
        };
        let models = drafts.models.iter().map(|path| Opened::new(path));
        Ok(Files {
            drafts: models.collect::<Result<_, _>>()?,
            vocab_map: drafts.vocab_map.as_deref().map(open_map).transpose()?,
            lookup: Arc::new(LookupFiles {
                fixed: lookup(&drafts.lookup_static)?,
                dynamic: lookup(&drafts.lookup_dynamic)?,
            }),
            model,
            tokenizer,
        })
    }

    /// What the files can draft with: what the draft files are, in their order, else the target's
    /// own MTP head.
    pub fn default_spec_types(&self) -> Vec<SpecType> {
        let kinds = self.drafts.iter().map(Opened::draft_kind);
        let inline = (self.model.hparams.n_mtp() > 0).then_some(DraftKind::Mtp);
        let mut types = Vec::new();
        for kind in kinds.chain(inline) {
            let spec_type = match kind {
                DraftKind::Model => SpecType::DraftSimple,
                DraftKind::Mtp => SpecType::DraftMtp,
                DraftKind::Eagle3 => SpecType::DraftEagle3,
            };
            if !types.contains(&spec_type) {
                types.push(spec_type);
            }
        }
        types
    }

    /// The first draft file of a kind.
    fn draft(&self, kind: DraftKind) -> Option<&Opened> {
        self.drafts.iter().find(|draft| draft.draft_kind() == kind)
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
        self.drafts.iter().try_for_each(Opened::check_values)?;
        let speculators = config
            .spec_types
            .iter()
            .map(|&kind| self.speculator(backend, kind, config))
            .collect::<Result<Vec<_>, _>>()?;
        let n_rollback = speculators.iter().map(|s| s.n_max()).max().unwrap_or(0);
        let mut model =
            load_target(&**backend, &self.model.plan).map_err(|e| at(&self.model.path, e))?;
        if config.spec_types.contains(&SpecType::DraftEagle3)
            && let Some(draft) = self.draft(DraftKind::Eagle3)
            && let Some(features) = &draft.hparams.features
        {
            model.taps.clone_from(&features.layers);
        }
        let target = self.context(backend, &self.model.path, model, config, n_rollback)?;
        Ok(Driver::new(target, speculators, config.policy))
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
            n_batch: N_BATCH.max(n_seq * (MAX_DRAFT + 1)),
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
        let chain = config.chain;
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
            SpecType::NgramCache => {
                Box::new(NgramCache::new(Arc::clone(&self.lookup), config.n_seq))
            }
            SpecType::DraftMtp => {
                let file = self.draft(DraftKind::Mtp).unwrap_or(&self.model);
                self.check_fit(file)?;
                let head = load_mtp_head(&**backend, &file.plan).map_err(|e| at(&file.path, e))?;
                let context = self.context(backend, &file.path, head, config, chain.n_max)?;
                Box::new(Mtp::new(context, chain))
            }
            SpecType::DraftSimple => {
                // A draft model may have an MTP head too.
                let file = self
                    .draft(DraftKind::Model)
                    .or(self.draft(DraftKind::Mtp))
                    .ok_or_else(|| needs("a draft model (-md FILE)"))?;
                let model = || load_target(&**backend, &file.plan).map_err(|e| at(&file.path, e));
                if let Some(opened) = &self.vocab_map {
                    self.check_map(opened, file)?;
                    // Another tokenizer may need more tokens for the same text.
                    let config = RunConfig {
                        n_ctx: config.n_ctx.saturating_mul(TRANSLATED_LENGTH),
                        ..config.clone()
                    };
                    let context =
                        self.context(backend, &file.path, model()?, &config, chain.n_max)?;
                    let map = opened.map.clone();
                    return Ok(Box::new(TranslatedDraft::new(context, map, chain)));
                }
                self.check_fit(file)?;
                let model = model()?;
                let context = self.context(backend, &file.path, model, config, chain.n_max)?;
                Box::new(DraftModel::new(context, chain))
            }
            SpecType::DraftEagle3 => {
                let file = self
                    .draft(DraftKind::Eagle3)
                    .ok_or_else(|| needs("an EAGLE-3 draft (-md FILE)"))?;
                self.check_fit(file)?;
                let (model, fusion) = load_eagle3(&**backend, &file.plan, &self.model.plan)
                    .map_err(|e| at(&file.path, e))?;
                let context = self.context(backend, &file.path, model, config, chain.n_max)?;
                Box::new(Eagle3::new(context, fusion, chain))
            }
        })
    }

    /// Refuses a map that was made for other vocabularies.
    fn check_map(&self, opened: &OpenedMap, draft: &Opened) -> Result<(), Error> {
        let sides = [
            ("target", &self.model, &opened.map.target),
            ("draft model", draft, &opened.map.draft),
        ];
        for (side, file, found) in sides {
            let expected = Vocabulary::of(&tokens(file)?);
            if *found != expected {
                return Err(Error::MapMismatch {
                    path: opened.path.clone(),
                    side,
                    found: found.n_tokens,
                    found_hash: found.sha256.clone(),
                    expected: expected.n_tokens,
                    expected_hash: expected.sha256,
                });
            }
        }
        Ok(())
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
        let Some(features) = &draft.hparams.features else {
            return Ok(());
        };
        let (a, b) = (features.n_embd_target, target.hparams.n_embd);
        if a != b {
            return Err(differ("target_hidden_size", a.to_string(), b.to_string()));
        }
        let n_layer = target.hparams.n_layer;
        if let Some(layer) = features.layers.iter().find(|&&layer| layer > n_layer) {
            let (a, b) = (layer.to_string(), format!("{n_layer} layers"));
            return Err(differ("a layer of target_layers", a, b));
        }
        Ok(())
    }
}

/// The texts of a file's tokens.
fn tokens(file: &Opened) -> Result<Vec<bstr::BString>, Error> {
    let found = file.plan.metadata.strings(keys::TOKENS);
    let found = found.map_err(|e| at(&file.path, e))?;
    Ok(found.unwrap_or_default().to_vec())
}
