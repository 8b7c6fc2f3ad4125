//! Puts files together: a target, its tokenizer, and the files that draft for it. What is made of
//! them is [`Loaded`].

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bstr::BStr;
use kernels::backend::Backend;
use schemas::arch::{Hparams, keys};
use schemas::gguf::{self, Plan, Strings};
use schemas::vocab::{VocabMap, Vocabulary};

use crate::cache::CacheTypes;
use crate::error::{Error, ModelError};
use crate::loaded::Loaded;
use crate::model::check_values;
use crate::speculate::lookup::Lookup;
use crate::speculate::{Drafting, Driver, LookupFiles, Policy, Request, SpecType};
use crate::tokenizer::{self, Tokenizer};

/// Tokens of one pass while a prompt is read.
pub(crate) const N_BATCH: usize = 512;
/// Longest draft of any speculator, which every context has room to follow.
pub const MAX_DRAFT: usize = 64;

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
    /// How drafts are made.
    pub drafting: Drafting,
    /// Sequences at once.
    pub n_seq: usize,
    /// Positions of each.
    pub n_ctx: usize,
    /// How caches keep keys and values.
    pub caches: RunCaches,
}

/// Element types of a run's caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCaches {
    /// Of the target.
    pub target: CacheTypes,
    /// Of what drafts.
    pub draft: CacheTypes,
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

    /// Whether it holds more than a head.
    pub(crate) fn has_trunk(&self) -> bool {
        let mut names = self.plan.tensors.iter().map(|tensor| &tensor.name);
        names.any(|name| name.starts_with("blk.0.")) || self.hparams.n_mtp() == 0
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
    /// Checks that no model file has changed since it was opened: weights are read from the mapped
    /// files whenever they are first used.
    ///
    /// # Errors
    /// A file has another size or modification time now.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        let files = [&self.model].into_iter().chain(&self.drafts);
        files
            .map(|file| &file.plan)
            .try_for_each(Plan::check_unchanged)?;
        Ok(())
    }

    /// Opens the target and what drafts for it.
    ///
    /// # Errors
    /// A file is unreadable, invalid, or of an unknown architecture or tokenizer.
    pub fn open(model: &Path, drafts: &DraftFiles) -> Result<Files, Error> {
        let mut model = Opened::new(model)?;
        let tokenizer =
            Tokenizer::from_metadata(&model.plan.metadata).map_err(|e| at(&model.path, e))?;
        let n_vocab = model.hparams.n_vocab as usize;
        let lookup = |path: &Option<PathBuf>| match path {
            Some(path) => Lookup::read(path, n_vocab),
            None => Ok(Lookup::default()),
        };
        let models = drafts.models.iter().map(|path| Opened::new(path));
        let mut models: Vec<Opened> = models.collect::<Result<_, _>>()?;
        // The tokenizer has what it needs of them; nobody else reads these megabytes.
        for file in models.iter_mut().chain([&mut model]) {
            for key in tokenizer::OWN_KEYS {
                file.plan.metadata.remove(key);
            }
        }
        Ok(Files {
            drafts: models,
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
        self.n_ctx_within(requests, self.model.hparams.n_ctx_train as usize)
    }

    /// Positions that these texts need, but no more than `most`.
    pub fn n_ctx_within(&self, requests: &[Request], most: usize) -> usize {
        let lengths = requests
            .iter()
            .map(|request| request.tokens.len().saturating_add(request.n_predict));
        let longest = lengths.max().unwrap_or_default();
        longest.min(most)
    }

    /// Loads weights and allocates caches, for one run.
    ///
    /// # Errors
    /// A tensor is missing or unusable, or a speculator lacks what it drafts with.
    pub fn driver<B: Backend>(
        &self,
        backend: &Arc<B>,
        config: &RunConfig,
    ) -> Result<Driver<B>, Error> {
        Loaded::new(self, backend, std::slice::from_ref(config))?.driver(config)
    }

    /// The file that one kind of speculator drafts with; `None` for those that need none.
    pub(crate) fn draft_file(&self, kind: SpecType) -> Result<Option<&Opened>, Error> {
        let needs = |needs: &str| Error::SpeculatorNeeds {
            name: kind.name(),
            needs: needs.to_owned(),
        };
        let file = match kind {
            SpecType::NgramSimple
            | SpecType::NgramMapK
            | SpecType::NgramMapK4v
            | SpecType::NgramMod
            | SpecType::NgramCache => return Ok(None),
            SpecType::DraftMtp => self.draft(DraftKind::Mtp).unwrap_or(&self.model),
            // A draft model may have an MTP head too.
            SpecType::DraftSimple => self
                .draft(DraftKind::Model)
                .or(self.draft(DraftKind::Mtp))
                .ok_or_else(|| needs("a draft model (-md FILE)"))?,
            SpecType::DraftEagle3 => self
                .draft(DraftKind::Eagle3)
                .ok_or_else(|| needs("an EAGLE-3 draft (-md FILE)"))?,
        };
        Ok(Some(file))
    }

    /// Layers of the target whose inputs one of these speculators sees.
    pub(crate) fn taps(&self, spec_types: &[SpecType]) -> Result<&[u32], Error> {
        let mut taps = &[][..];
        for &kind in spec_types {
            let file = self.draft_file(kind)?;
            if let Some(features) = file.and_then(|file| file.hparams.features.as_ref()) {
                taps = &features.layers;
            }
        }
        Ok(taps)
    }

    /// Refuses a draft that cannot draft for the target.
    pub(crate) fn check_draft(&self, kind: SpecType, draft: &Opened) -> Result<(), Error> {
        match &self.vocab_map {
            Some(map) if kind == SpecType::DraftSimple => self.check_map(map, draft),
            _ => self.check_fit(draft),
        }
    }

    /// Refuses a map that was made for other vocabularies.
    fn check_map(&self, opened: &OpenedMap, draft: &Opened) -> Result<(), Error> {
        let sides = [
            ("target", &self.model, &opened.map.target),
            ("draft model", draft, &opened.map.draft),
        ];
        let no_tokens = Strings::default();
        for (side, file, found) in sides {
            let expected = Vocabulary::of(tokens(file)?.unwrap_or(&no_tokens));
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
        if let (Some(ours), Some(theirs)) = (tokens(draft)?, tokens(target)?) {
            let mut pairs = ours.iter().zip(theirs).enumerate();
            if let Some((id, (ours, theirs))) = pairs.find(|(_, (ours, theirs))| ours != theirs) {
                let text = |token: &BStr| format!("token {id} = {token:?}");
                return Err(differ("the token table", text(ours), text(theirs)));
            }
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

/// The texts of a file's tokens, if it has them.
fn tokens(file: &Opened) -> Result<Option<&Strings>, Error> {
    let found = file.plan.metadata.strings(keys::TOKENS);
    found.map_err(|e| at(&file.path, e))
}
