//! Opens the files of a run: a target, its tokenizer, and the files of its drafters.
//! [`LoadedModels`](crate::loaded_models::LoadedModels) has their weights.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bstr::BStr;
use schemas::arch::{Hparams, keys, reduced_vocab};
use schemas::gguf::{self, Plan, Strings};
use schemas::progress::{Task, Unit};
use schemas::vocab::{VocabMap, Vocabulary};

use crate::error::{Error, ModelError};
use crate::model::{check_values, lent_blocks};
use crate::speculate::lookup::Lookup;
use crate::speculate::{DraftKind, LookupFiles, ModelSpec, Request, SpecType};
use crate::tokenizer::{self, Tokenizer};

/// The files of a run, opened and checked but not yet loaded.
pub struct Files {
    /// The target.
    pub model: ModelFile,
    /// Draft models, EAGLE-3 drafts, separate files with the target's MTP head.
    pub drafts: Vec<ModelFile>,
    /// Vocabulary map for a draft model with another tokenizer.
    pub vocab_map: Option<VocabMapFile>,
    /// Lookup files for `ngram-cache`.
    pub lookup: Arc<LookupFiles>,
    /// The target's tokenizer.
    pub tokenizer: Tokenizer,
}

/// A vocabulary map.
pub struct VocabMapFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The map.
    pub map: VocabMap,
}

/// The files of the drafters, besides the target.
#[derive(Clone, Debug, Default)]
pub struct DraftFiles {
    /// Model files; of several that suit a speculator, the first one is used.
    pub models: Vec<PathBuf>,
    /// Map between the tokens of the target and those of a draft model.
    pub vocab_map: Option<PathBuf>,
    /// Lookup file of a large corpus, by token pair.
    pub lookup_static: Option<PathBuf>,
    /// Lookup file of earlier texts.
    pub lookup_dynamic: Option<PathBuf>,
}

impl DraftFiles {
    /// Iterates over all paths.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let rest = [&self.vocab_map, &self.lookup_static, &self.lookup_dynamic];
        self.models.iter().chain(rest.into_iter().flatten())
    }
}

/// The file that has a speculator's model.
#[derive(Clone, Copy)]
pub struct DraftFile<'a> {
    /// The speculator.
    pub kind: SpecType,
    /// The description of its model.
    pub model: &'static ModelSpec,
    /// The file.
    pub file: &'a ModelFile,
}

impl DraftFile<'_> {
    /// Returns the kind of the draft, by which it is loaded.
    pub fn draft_kind(&self) -> DraftKind {
        match self.file.draft_kind() {
            DraftKind::Assistant => DraftKind::Assistant,
            _ => self.model.kind,
        }
    }
}

/// A model file.
pub struct ModelFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The contents of the file.
    pub plan: Plan,
    /// Hyperparameters.
    pub hparams: Hparams,
    /// Set after the values were checked.
    checked: OnceLock<()>,
}

impl ModelFile {
    /// Opens a file and reads its hyperparameters.
    ///
    /// # Errors
    /// The file is unreadable, invalid, or of an unknown architecture.
    pub fn new(path: &Path) -> Result<ModelFile, Error> {
        let plan = reduced_vocab::adopt(gguf::open(path)?);
        let hparams = Hparams::from_plan(&plan).map_err(|e| at(path, e))?;
        Ok(ModelFile {
            path: path.to_path_buf(),
            plan,
            hparams,
            checked: OnceLock::new(),
        })
    }

    /// Rejects invalid weights; reads the file on the first call only.
    ///
    /// # Errors
    /// A tensor has invalid values, or cannot be read.
    pub fn check_values(&self) -> Result<(), Error> {
        if self.checked.get().is_none() {
            let label = format!("check {}", self.path.display());
            let task = Task::start(&label, self.plan.data_bytes(), Unit::Bytes);
            check_values(&self.plan, &task).map_err(|e| self.error(e))?;
            self.checked.get_or_init(|| ());
        }
        Ok(())
    }

    /// Returns the vocabulary that the file's tokenizer has; an empty one without a tokenizer.
    ///
    /// # Errors
    /// The tokens are not a list of texts.
    pub fn vocabulary(&self) -> Result<Vocabulary, Error> {
        Ok(Vocabulary::of(tokens(self)?.unwrap_or(&Strings::default())))
    }

    /// True if the file has more than an MTP head.
    pub(crate) fn has_trunk(&self) -> bool {
        let mut names = self.plan.tensors.iter().map(|tensor| &tensor.name);
        names.any(|name| name.starts_with("blk.0.")) || self.hparams.n_mtp() == 0
    }

    /// Returns the kind of draft that the file has.
    fn draft_kind(&self) -> DraftKind {
        DraftKind::of(&self.hparams)
    }

    /// Adds this file's path to an error.
    pub fn error(&self, source: impl Into<ModelError>) -> Error {
        at(&self.path, source)
    }
}

fn open_map(path: &Path) -> Result<VocabMapFile, Error> {
    let plan = gguf::open(path)?;
    let path = path.to_path_buf();
    match VocabMap::from_plan(&plan) {
        Ok(map) => Ok(VocabMapFile { path, map }),
        Err(source) => Err(Error::VocabMap { path, source }),
    }
}

/// Adds a path to an error.
fn at(path: &Path, source: impl Into<ModelError>) -> Error {
    Error::Model {
        path: path.to_path_buf(),
        source: source.into(),
    }
}

impl Files {
    /// Checks that no model file has changed since it was opened, because weights are read from the
    /// mapped files on first use.
    ///
    /// # Errors
    /// The size or modification time of a file has changed.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        let files = [&self.model].into_iter().chain(&self.drafts);
        files
            .map(|file| &file.plan)
            .try_for_each(Plan::check_unchanged)?;
        Ok(())
    }

    /// Opens the target and the files of its drafters.
    ///
    /// # Errors
    /// A file is unreadable, invalid, or of an unknown architecture or tokenizer.
    pub fn open(model: &Path, drafts: &DraftFiles) -> Result<Files, Error> {
        let mut model = ModelFile::new(model)?;
        let tokenizer =
            Tokenizer::from_metadata(&model.plan.metadata).map_err(|e| at(&model.path, e))?;
        let n_vocab = model.hparams.n_vocab as usize;
        let lookup = |path: &Option<PathBuf>| match path {
            Some(path) => Lookup::read(path, n_vocab),
            None => Ok(Lookup::default()),
        };
        let models = drafts.models.iter().map(|path| ModelFile::new(path));
        let mut models: Vec<ModelFile> = models.collect::<Result<_, _>>()?;
        // The tokenizer has copied what it needs; no other code reads these megabytes.
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

    /// Returns the speculators that the files allow: the kinds of the draft files, in their order,
    /// else the target's own MTP head.
    pub fn default_spec_types(&self) -> Vec<SpecType> {
        // An assistant takes the place of an MTP head.
        let kinds = self.drafts.iter().map(|file| match file.draft_kind() {
            DraftKind::Assistant => DraftKind::Mtp,
            kind => kind,
        });
        let inline = (self.model.hparams.n_mtp() > 0).then_some(DraftKind::Mtp);
        let mut types = Vec::new();
        for kind in kinds.chain(inline) {
            let drafts = |spec_type: &SpecType| {
                let model = spec_type.spec().model.as_ref();
                model.is_some_and(|model| model.kind == kind)
            };
            types.extend(
                SpecType::ALL
                    .into_iter()
                    .find(drafts)
                    .filter(|found| !types.contains(found)),
            );
        }
        types
    }

    /// The first draft file of a kind.
    fn draft(&self, kind: DraftKind) -> Option<&ModelFile> {
        self.drafts.iter().find(|draft| draft.draft_kind() == kind)
    }

    /// Returns the number of positions the longest of these texts needs, at most `n_ctx_max`, or the
    /// target's training context without it.
    pub fn n_ctx(&self, requests: &[Request], n_ctx_max: Option<usize>) -> usize {
        let most = n_ctx_max.unwrap_or(self.model.hparams.n_ctx_train as usize);
        let lengths = requests
            .iter()
            .map(|request| request.tokens.len().saturating_add(request.n_predict));
        let longest = lengths.max().unwrap_or_default();
        longest.min(most)
    }

    /// Returns the file of a speculator's model; `None` if the speculator has no model.
    ///
    /// # Errors
    /// The speculator lacks its draft file.
    pub fn draft_file(&self, kind: SpecType) -> Result<Option<DraftFile<'_>>, Error> {
        let Some(model) = &kind.spec().model else {
            return Ok(None);
        };
        let own = || self.draft(model.kind);
        let other = || self.draft(model.other_file?);
        let target = || model.in_target.then_some(&self.model);
        match own().or_else(other).or_else(target) {
            Some(file) => Ok(Some(DraftFile { kind, model, file })),
            None => Err(Error::SpeculatorNeeds {
                name: kind.name(),
                needs: model.missing,
            }),
        }
    }

    /// Returns the layers of the target whose inputs these speculators read, each layer once.
    pub(crate) fn taps(&self, spec_types: &[SpecType]) -> Result<Vec<u32>, Error> {
        let mut taps = Vec::new();
        for &kind in spec_types {
            let draft = self.draft_file(kind)?;
            let features = draft.and_then(|draft| draft.file.hparams.features.as_ref());
            for layer in features.iter().flat_map(|features| &features.layers) {
                if !taps.contains(layer) {
                    taps.push(*layer);
                }
            }
        }
        Ok(taps)
    }

    /// Rejects a draft that cannot draft for the target.
    ///
    /// # Errors
    /// Token ids, the vocabulary map or hidden states do not match those of the target.
    pub fn check_draft(&self, draft: DraftFile<'_>) -> Result<(), Error> {
        match &self.vocab_map {
            Some(map) if draft.model.takes_vocab_map => self.check_map(map, draft.file),
            _ => self.check_fit(draft.file),
        }
    }

    /// Rejects a map that was made for other vocabularies.
    fn check_map(&self, opened: &VocabMapFile, draft: &ModelFile) -> Result<(), Error> {
        let sides = [
            ("target", &self.model, &opened.map.target),
            ("draft model", draft, &opened.map.draft),
        ];
        for (side, file, found) in sides {
            let expected = file.vocabulary()?;
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

    /// Rejects a draft whose token ids or hidden states do not match the target's.
    fn check_fit(&self, draft: &ModelFile) -> Result<(), Error> {
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
                return Err(differ(
                    "the first token that differs",
                    text(ours),
                    text(theirs),
                ));
            }
        }
        // A separate MTP head without an output head would silently use the embedding as one.
        let has_head = |file: &ModelFile| {
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
        if let Some(own) = draft.hparams.assistant {
            let (a, b) = (own.n_embd_target, target.hparams.n_embd);
            if a != b {
                return Err(differ("embedding_length_out", a.to_string(), b.to_string()));
            }
            lent_blocks(&draft.hparams, &target.hparams).map_err(|e| draft.error(e))?;
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

/// Returns the token strings of a file, if it has them.
fn tokens(file: &ModelFile) -> Result<Option<&Strings>, Error> {
    let found = file.plan.metadata.strings(keys::TOKENS);
    found.map_err(|e| at(&file.path, e))
}
