//! Matches the architecture's table with the checkpoint's tensors: every entry must be found, and every
//! tensor used, left out for a reason, or rejected.

use std::collections::HashSet;
use std::sync::Arc;

use safetensors::Dtype;
use schemas::arch::{
    ArchSpec, Expected, Hparams, Need, ROPE_FREQS, ROUTER, StoredForm, Transform, keys, mtp_layout,
};
use schemas::gguf::{DType, Metadata, Owned, Plan, Source, Tensor};
use schemas::size::Size;

use crate::arch::HfArch;
use crate::arch::deepseek4;
use crate::arch::dflash;
use crate::arch::eagle3::Draft;
use crate::arch::gemma4;
use crate::checkpoint::{self, StoredTensor};
use crate::class::find_arch;
use crate::config::{ConvertConfig, FileType, MtpMode, OutType};
use crate::error::{Error, Names};
use crate::gather::{Found, Gathered, Missing, gather};
use crate::general::{self, Naming};
use crate::hf_config::HfConfig;
use crate::indices::Indices;
use crate::note::Note;
use crate::quantization::{self, Quantization};
use crate::transform::{RopeScaling, Target, joined, source, stack};
use crate::{arch, mtp, vocab};

/// A planned conversion.
pub struct Converted {
    /// Metadata and tensors; weights are read only when a writer requests them.
    pub plan: Plan,
    /// The file name by the naming convention of GGUF files.
    pub default_name: String,
    /// Notes for the user.
    pub notes: Vec<Note>,
}

/// Plans the conversion of a checkpoint.
///
/// Reads `config.json`, the tokenizer's files, the model card and the headers of the weights, but no
/// weights, except for the vocabulary map of a draft.
///
/// # Errors
/// The checkpoint is broken, incomplete, or not supported; the message names the file, the tensor or field,
/// what was found and what was expected.
pub fn plan(config: &ConvertConfig) -> Result<Converted, Error> {
    let mut notes = Vec::new();
    let mut settings = Settings::open(config, &mut notes)?;
    let stored = checkpoint::open(config, settings.quantization, &mut notes)?;
    if config.mtp == MtpMode::DSpark {
        deepseek4::select_draft(&mut settings.hf_config, &stored)?;
    }
    let (arch, hf_config) = (settings.arch, &settings.hf_config);
    let draft = Draft::open(arch, hf_config, config)?;
    let mode = settings.mtp_mode(config.mtp, &stored, &mut notes)?;
    let n_mtp = mtp::count_layers(arch, hf_config, &stored, mode, &mut notes)?;
    let n_layer = hf_config.fields.need_u32("num_hidden_layers")?;
    let head = arch.mtp.as_ref().filter(|_| n_mtp == 0);
    let own_ends = mtp::replaced_ends(arch, mode);
    let left_out = |name: &str| {
        head.is_some_and(|mtp| mtp::is_in_head(mtp, n_layer, name))
            || own_ends.contains(&name)
            || (settings.hf_arch.is_unread)(hf_config, name)
    };
    let text = text_tensors(stored, left_out, &mut notes);
    let n_vocab = check_vocab(hf_config, &text, draft.as_ref())?;
    let text = match &draft {
        Some(draft) => draft.used(text)?,
        None => text,
    };
    let (text, d2t) = match &draft {
        Some(draft) => {
            let split = draft.split(text, &mut notes)?;
            (split.tensors, split.d2t)
        }
        None => (text, None),
    };
    let (text, ordering) = match arch.assistant {
        true => {
            let split = gemma4::split(hf_config, text, n_vocab, config.clusters)?;
            notes.extend(split.ordering.is_some().then_some(Note::Clusters));
            (split.tensors, split.ordering)
        }
        false => (text, None),
    };
    let file_type = match settings.hf_arch.keeps_types {
        true => kept_type(config.outtype, &text, &mut notes),
        false => resolve_type(config.outtype, &text, &mut notes),
    };
    let file_type = file_type.with_blocks(settings.quantization);

    let model = arch::Model {
        arch,
        hf_arch: settings.hf_arch,
        config: hf_config,
        target: draft.as_ref().map(|draft| &draft.target),
        has_confidence_head: find(&text, "confidence_head.proj.weight").is_some(),
        has_centroids: ordering.is_some(),
        n_mtp,
        file_type,
    };
    let keys = Keys::of(&model, config, draft.as_ref(), n_vocab, &mut notes)?;
    let mut hparams = keys.hparams(arch, hf_config, draft.as_ref())?;
    find_routers(&mut hparams, &text);
    if let Some(markov) =
        find(&text, "markov_head.markov_w1.weight").and_then(|tensor| tensor.shape.get(1))
    {
        hparams.set_markov_rank(*markov);
    }
    let tensors = Tensors {
        hf_config,
        hf_arch: settings.hf_arch,
        hparams: &hparams,
        file_type,
        mtp: config.mtp,
    };
    let mut tensors = tensors.plan(text, &mut notes)?;
    tensors.extend(d2t.into_iter().chain(ordering));
    let (general, naming) = general::metadata(hf_config, Size::of(&tensors), &mut notes)?;

    let mut plan = Plan::new(keys.join(&general));
    plan.tensors = tensors;
    Ok(Converted {
        plan,
        default_name: file_name(&naming, file_type, config.mtp),
        notes,
    })
}

/// Returns the stored tensor whose name ends so.
fn find<'a>(stored: &'a [StoredTensor], name: &str) -> Option<&'a StoredTensor> {
    stored.iter().find(|tensor| tensor.name.ends_with(name))
}

/// Finds the blocks with experts of an architecture whose keys do not state them.
fn find_routers(hparams: &mut Hparams, stored: &[StoredTensor]) {
    let router = hparams.arch.tensor_specs().find(|spec| spec.gguf == ROUTER);
    if let Some(router) = router {
        let names: HashSet<String> = stored.iter().map(StoredTensor::text_name).collect();
        hparams
            .find_routers(|block| names.contains(&format!("model.layers.{block}.{}", router.hf)));
    }
}

/// A checkpoint's config, and the conversion that follows from it.
struct Settings {
    hf_config: HfConfig,
    arch: &'static ArchSpec,
    hf_arch: &'static HfArch,
    quantization: Quantization,
}

impl Settings {
    /// Returns the part of the model that is converted: without its head, for classes whose heads are left
    /// out.
    fn mtp_mode(
        &self,
        requested: MtpMode,
        stored: &[StoredTensor],
        notes: &mut Vec<Note>,
    ) -> Result<MtpMode, Error> {
        if self.hf_arch.sidecar_only && requested == MtpMode::Inline {
            let n_layer = self.hf_config.fields.need_u32("num_hidden_layers")?;
            notes.extend(mtp::left_out(self.arch, n_layer, stored));
            return Ok(MtpMode::Without);
        }
        let class = self.hf_config.class()?;
        if !self.hf_arch.headless_classes.contains(&class.as_str()) {
            return Ok(requested);
        }
        match requested {
            MtpMode::Only => Err(Error::MtpUnsupported {
                path: self.hf_config.folder.clone(),
                arch: self.arch.name,
            }),
            MtpMode::Inline | MtpMode::Without | MtpMode::DSpark => Ok(MtpMode::Without),
        }
    }

    fn open(config: &ConvertConfig, notes: &mut Vec<Note>) -> Result<Settings, Error> {
        let mut hf_config = HfConfig::open(&config.checkpoint)?;
        hf_config.name = config.remote.as_ref().map(|remote| remote.name.clone());
        let (mut arch, mut hf_arch) = find_arch(&hf_config)?;
        if config.mtp == MtpMode::DSpark {
            let draft = hf_arch.dspark.ok_or_else(|| Error::DSparkUnsupported {
                path: hf_config.folder.clone(),
                arch: arch.name,
            });
            (arch, hf_arch) = draft?;
        }
        let quantization = match hf_arch.keeps_types {
            true => quantization::mixed(&hf_config)?,
            false => quantization::of(&hf_config)?,
        };
        notes.extend(arch::fill_defaults(hf_arch, &mut hf_config));
        notes.extend(arch::check(arch, hf_arch, &hf_config)?);
        Ok(Settings {
            hf_config,
            arch,
            hf_arch,
            quantization,
        })
    }
}

/// Groups of keys, in file order; the descriptive keys are between the first two.
struct Keys {
    architecture: Metadata,
    sizes: Metadata,
    vocab: Metadata,
}

impl Keys {
    /// Returns the keys of a model and of its tokenizer, which a draft takes from its target.
    fn of(
        model: &arch::Model<'_>,
        config: &ConvertConfig,
        draft: Option<&Draft<'_>>,
        n_vocab: u64,
        notes: &mut Vec<Note>,
    ) -> Result<Keys, Error> {
        let sizes = arch::metadata(model)?;
        let tokenizer = model.target.unwrap_or(model.config);
        let mut vocab = vocabulary(model.hf_arch, config, tokenizer, n_vocab, notes)?;
        if sizes.contains(&format!("{}.{}", model.arch.name, keys::BLOCK_SIZE)) {
            let mask_token = dflash::mask_token(model.config)?;
            vocab.set(keys::MASK_TOKEN_ID, mask_token);
        }
        let mut architecture = Metadata::new();
        architecture.set(keys::ARCHITECTURE, model.arch.name);
        if let (true, Some(template)) = (
            model.hf_arch.template_first,
            vocab.get(vocab::CHAT_TEMPLATE),
        ) {
            architecture.set(vocab::CHAT_TEMPLATE, template.clone());
        }
        if let Some(draft) = draft {
            architecture = join([&architecture, &draft.metadata(model.arch)?]);
        }
        Ok(Keys {
            architecture,
            sizes,
            vocab,
        })
    }

    /// Returns the hyperparameters that readers will find in the file.
    fn hparams(
        &self,
        arch: &'static ArchSpec,
        config: &HfConfig,
        draft: Option<&Draft<'_>>,
    ) -> Result<Hparams, Error> {
        let keys = join([&self.architecture, &self.sizes, &self.vocab]);
        let hparams = Hparams::of_arch(arch, &keys);
        let mut hparams = hparams.map_err(|source| Error::Hparams {
            path: config.path.clone(),
            source,
        })?;
        arch::check_scale(config, &hparams)?;
        if let Some(draft) = draft {
            hparams.n_vocab_draft = draft.n_vocab_draft()?;
        }
        Ok(hparams)
    }

    /// Returns the metadata of the file.
    fn join(&self, general: &Metadata) -> Metadata {
        let mut kind = Metadata::new();
        kind.set("general.type", "model");
        let mut quantization = Metadata::new();
        quantization.set(keys::QUANTIZATION_VERSION, QUANTIZATION_VERSION);
        join([
            &self.architecture,
            &kind,
            general,
            &self.sizes,
            &quantization,
            &self.vocab,
        ])
    }
}

/// Version of ggml's block layouts.
const QUANTIZATION_VERSION: u32 = 2;

fn join<'a>(parts: impl IntoIterator<Item = &'a Metadata>) -> Metadata {
    let mut joined = Metadata::new();
    for (key, value) in parts.into_iter().flat_map(Metadata::iter) {
        joined.set(key, value.clone());
    }
    joined
}

/// Returns the tensors of the text model, except those that are left out.
fn text_tensors(
    stored: Vec<StoredTensor>,
    left_out: impl Fn(&str) -> bool,
    notes: &mut Vec<Note>,
) -> Vec<StoredTensor> {
    let mut text = Vec::new();
    let (mut other, mut computed) = (Names(Vec::new()), Names(Vec::new()));
    for tensor in stored {
        let name = tensor.text_name();
        if is_other_modality(&name) {
            other.0.push(tensor.name);
        } else if name.ends_with(".rotary_emb.inv_freq") {
            computed.0.push(tensor.name);
        } else if !left_out(&name) {
            text.push(tensor);
        }
    }
    if !other.0.is_empty() {
        notes.push(Note::OtherModality { names: other });
    }
    if !computed.0.is_empty() {
        notes.push(Note::Computed { names: computed });
    }
    text
}

/// Returns true if a tensor belongs to a vision or audio module, by its name.
fn is_other_modality(name: &str) -> bool {
    const MODULES: [&str; 10] = [
        "visual",
        "vision",
        "aligner",
        "vision_model",
        "vision_tower",
        "audio_tower",
        "multi_modal_projector",
        "mm_projector",
        "embed_vision",
        "embed_audio",
    ];
    let name = name.strip_prefix("model.").unwrap_or(name);
    let module = name.split('.').next().unwrap_or_default();
    MODULES.contains(&module) || module.starts_with("image_")
}

/// Returns the file's element type; `auto` is that of the first 16-bit matrix, in file order.
fn resolve_type(outtype: OutType, tensors: &[StoredTensor], notes: &mut Vec<Note>) -> FileType {
    match outtype {
        OutType::F32 => FileType::F32,
        OutType::F16 => FileType::F16,
        OutType::BF16 => FileType::BF16,
        OutType::Q8_0 => FileType::Q8_0,
        OutType::Auto => auto_type(tensors, notes),
    }
}

fn auto_type(tensors: &[StoredTensor], notes: &mut Vec<Note>) -> FileType {
    let matrices = || tensors.iter().filter(|tensor| tensor.shape.len() >= 2);
    let first = matrices().find_map(|tensor| match tensor.dtype {
        Dtype::BF16 => Some((FileType::BF16, tensor.name.clone())),
        Dtype::F16 => Some((FileType::F16, tensor.name.clone())),
        _ => None,
    });
    let (file_type, tensor) = first.map_or((FileType::F16, None), |(t, name)| (t, Some(name)));
    if tensor.is_none() {
        notes.push(Note::Narrowed {
            n_tensors: matrices().count(),
        });
    }
    notes.push(Note::AutoType {
        chosen: file_type.dtype.to_string(),
        tensor,
    });
    file_type
}

/// Returns the type of a file whose matrices keep their types: that of the experts, which are most of it.
fn kept_type(outtype: OutType, tensors: &[StoredTensor], notes: &mut Vec<Note>) -> FileType {
    notes.push(Note::KeptTypes);
    let given = match outtype {
        OutType::Auto => FileType::BF16,
        other => resolve_type(other, tensors, notes),
    };
    let is_expert = |tensor: &&StoredTensor| tensor.name.contains(".experts.");
    let experts = tensors.iter().find(is_expert);
    match experts.map(|tensor| (tensor.exponents.is_some(), tensor.dtype)) {
        Some((true, _)) => given.with_mxfp4_experts(),
        Some((_, Dtype::F8_E4M3 | Dtype::F8_E5M2)) => FileType::Q8_0,
        Some((_, Dtype::BF16)) => FileType::BF16,
        Some((_, Dtype::F32)) => FileType::F32,
        _ => given,
    }
}

/// Upper limit of a vocabulary's size.
const MAX_VOCAB: u64 = 1 << 24;

/// Returns the vocabulary size, which must match the rows of the embedding; a draft may lack its own
/// embedding.
fn check_vocab(
    config: &HfConfig,
    tensors: &[StoredTensor],
    draft: Option<&Draft<'_>>,
) -> Result<u64, Error> {
    let n_vocab = u64::from(config.fields.need_u32("vocab_size")?);
    if n_vocab == 0 || n_vocab > MAX_VOCAB {
        return Err(Error::Field {
            path: config.path.clone(),
            field: "vocab_size".to_owned(),
            expected: format!("1 to {MAX_VOCAB}"),
            found: n_vocab.to_string(),
        });
    }
    let name = "model.embed_tokens.weight";
    let embedding = tensors.iter().find(|tensor| tensor.text_name() == name);
    let Some(tensor) = embedding else {
        return match draft {
            Some(_) => Ok(n_vocab),
            None => Err(Error::MissingTensors {
                path: config.folder.clone(),
                names: Names(vec![name.to_owned()]),
            }),
        };
    };
    match tensor.shape.first() {
        Some(&n_rows) if n_rows == n_vocab => Ok(n_vocab),
        n_rows => Err(Error::VocabRows {
            path: tensor.path(),
            tensor: tensor.name.clone(),
            found: n_rows.copied().unwrap_or(0),
            expected: n_vocab,
        }),
    }
}

/// Returns the `tokenizer.*` keys of the checkpoint, or of another folder.
fn vocabulary(
    hf_arch: &HfArch,
    config: &ConvertConfig,
    hf_config: &HfConfig,
    n_vocab: u64,
    notes: &mut Vec<Note>,
) -> Result<Metadata, Error> {
    let Some(folder) = &config.tokenizer_from else {
        return vocab::metadata(hf_arch, hf_config, n_vocab, notes);
    };
    let donor = vocab::metadata(hf_arch, &HfConfig::open(folder)?, n_vocab, notes)?;
    // If the checkpoint's own tokenizer cannot be read, there is nothing to compare.
    if let Ok(own) = vocab::metadata(hf_arch, hf_config, n_vocab, &mut Vec::new()) {
        notes.extend(vocab::difference(&own, &donor));
    }
    Ok(donor)
}

/// The inputs that determine the tensors of a file.
struct Tensors<'a> {
    hf_config: &'a HfConfig,
    hf_arch: &'static HfArch,
    hparams: &'a Hparams,
    file_type: FileType,
    mtp: MtpMode,
}

impl Tensors<'_> {
    /// Returns the file's tensors: computed ones, then the stored ones in their order.
    fn plan(&self, stored: Vec<StoredTensor>, notes: &mut Vec<Note>) -> Result<Vec<Tensor>, Error> {
        let mut expected = self.hparams.arch.expected(self.hparams);
        if self.mtp == MtpMode::Only {
            mtp::take_own_ends(&mut expected, self.hparams);
        }
        if self.mtp == MtpMode::DSpark {
            deepseek4::find_draft_ends(&mut expected, &stored);
        }
        let gathered = gather(
            &expected,
            self.hparams,
            &stored,
            self.hf_arch.experts_in_table_order,
        )?;
        let found = gathered.found.iter();
        let mut tensors = found
            .filter(|found| self.keeps(found.expected))
            .map(|found| self.tensor(found, notes))
            .collect::<Result<Vec<_>, _>>()?;
        self.check_missing(&gathered)?;
        // llama.cpp's converter writes unmodified blocks before all other tensors.
        match self.hf_arch.leading {
            [] => tensors.sort_by_key(|tensor| tensor.dtype != DType::MXFP4),
            leading => tensors.sort_by_key(|tensor| place(leading, tensor)),
        }
        // Only at this point are the sizes validated.
        if let Some(tensor) = self.rope_freqs(&expected)? {
            tensors.insert(0, tensor);
        }
        match gathered.unused.0.is_empty() {
            true => Ok(tensors),
            false => Err(Error::UnusedTensors {
                path: self.hf_config.folder.clone(),
                arch: self.hparams.arch.name,
                names: gathered.unused,
            }),
        }
    }

    /// Returns true if the file contains this tensor of the model.
    fn keeps(&self, expected: &Expected) -> bool {
        let in_head = expected
            .layer
            .is_none_or(|layer| layer >= self.hparams.n_layer);
        self.mtp != MtpMode::Only || in_head
    }

    fn check_missing(&self, gathered: &Gathered<'_>) -> Result<(), Error> {
        let path = || self.hf_config.folder.clone();
        let needed = |missing: &&Missing<'_>| {
            (missing.expected.spec.need == Need::Required || missing.partly)
                && self.keeps(missing.expected)
        };
        let needed = gathered.missing.iter().filter(needed);
        let missing: Names = needed.flat_map(|missing| &missing.names).collect();
        if !missing.0.is_empty() {
            return Err(Error::MissingTensors {
                path: path(),
                names: missing,
            });
        }
        // Readers use the embedding for a missing output head, which is correct only if they are tied; a
        // draft uses the target's.
        if self.hparams.arch.is_draft() {
            return Ok(());
        }
        let head = "lm_head.weight";
        let tied = self.hf_config.fields.bool(&["tie_word_embeddings"])?;
        let mut missing = gathered.missing.iter().flat_map(|missing| &missing.names);
        match (missing.any(|name| name == head), tied) {
            (true, Some(false)) => Err(Error::MissingHead {
                path: path(),
                tensor: head.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn tensor(&self, found: &Found<'_>, notes: &mut Vec<Note>) -> Result<Tensor, Error> {
        let Found {
            expected,
            form,
            tensors,
        } = found;
        let shape = expected.shape(self.hparams);
        let hparams = expected.hparams(self.hparams);
        tensors
            .iter()
            .try_for_each(|stored| check_shape(stored, form))?;
        let name = expected.spec.gguf;
        if tensors[0].scales.is_some() && self.hf_arch.sharded.contains(&name) {
            let found =
                format!("FP8 for {name}, whose rows are stored by rank of tensor parallelism");
            return Err(self.hf_config.unsupported("quantization_config", found));
        }
        check_alike(tensors)?;
        let (dtype, source): (_, Arc<dyn Source>) =
            match (tensors[0].exponents.as_ref(), form.transform) {
                (_, [Transform::Indices { below }]) => {
                    let indices = Indices::new(tensors[0], shape[0], below(&hparams))?;
                    (DType::I32, Arc::new(indices))
                }
                (None, _) if expected.spec.beside.is_some() => {
                    let dtype = self.dtype(expected, &shape, tensors[0], notes);
                    (dtype, joined(tensors, &form.shape, dtype, &hparams)?)
                }
                (exponents, transform) => {
                    let dtype = match exponents {
                        Some(_) => DType::MXFP4,
                        None => self.dtype(expected, &shape, tensors[0], notes),
                    };
                    let target = Target {
                        shape: &shape[..form.shape.len()],
                        dtype,
                        transform,
                    };
                    let sources = tensors
                        .iter()
                        .map(|stored| source(stored, &target, &hparams));
                    (dtype, stack(sources.collect::<Result<_, _>>()?, &target))
                }
            };
        Tensor::new(&expected.name, shape, dtype, source).map_err(|source| Error::Size {
            path: tensors[0].path(),
            tensor: tensors[0].name.clone(),
            source,
        })
    }

    /// Returns the element type of a tensor: the file's type for matrices that readers multiply, F32 for
    /// the rest.
    fn dtype(
        &self,
        expected: &Expected,
        shape: &[u64],
        stored: &StoredTensor,
        notes: &mut Vec<Note>,
    ) -> DType {
        let name = expected.name.as_str();
        let kept = match stored.dtype {
            _ if !self.hf_arch.keeps_types => None,
            // A draft reads this matrix for every token, so llama.cpp's converter gives it one type.
            _ if expected.spec.beside.is_some() => Some(DType::Q8_0),
            Dtype::F8_E4M3 | Dtype::F8_E5M2 => Some(DType::Q8_0),
            Dtype::BF16 => Some(DType::BF16),
            Dtype::F32 => Some(DType::F32),
            _ => None,
        };
        // llama.cpp's converter does not recognize these matrices in a head's experts that the checkpoint has as a
        // layer of their own.
        let mtp = self.hparams.arch.mtp.as_ref();
        let own_experts = mtp.and_then(|mtp| mtp.hf_experts);
        let is_recognized = own_experts != Some(expected.hf_prefix.as_str());
        let always_f32 = shape.len() == 1
            || name.ends_with("_norm.weight")
            || kept.is_none() && is_recognized && ALWAYS_F32.iter().any(|row| name.ends_with(row))
            || !name.ends_with(".weight");
        if always_f32 {
            return DType::F32;
        }
        let wanted = kept.unwrap_or(self.file_type.dtype);
        if wanted.row_bytes(shape[0]).is_some() {
            return wanted;
        }
        notes.push(Note::Fallback {
            tensor: name.to_owned(),
            ne0: shape[0],
            wanted: wanted.to_string(),
            used: DType::F16.to_string(),
        });
        DType::F16
    }

    /// Returns the frequency factors of Llama 3's RoPE scaling, if the config has it, or those that rotate only
    /// a part of each head.
    fn rope_freqs(&self, expected: &[Expected]) -> Result<Option<Tensor>, Error> {
        let rope = &self.hf_config.rope;
        let row = expected.iter().find(|row| row.name == ROPE_FREQS);
        let number = |field, default| Ok(rope.f64(&[field])?.unwrap_or(default));
        let n_rot = self.hparams.n_rot;
        let is_llama3 = rope.str(&["rope_type"])?.as_deref() == Some("llama3");
        let (Some(row), true) = (row, is_llama3 || self.hf_arch.gemma4_layout) else {
            return Ok(None);
        };
        let scaling = RopeScaling {
            theta: number("rope_theta", 10_000.0)?,
            factor: number("factor", 8.0)?,
            low_freq_factor: number("low_freq_factor", 1.0)?,
            high_freq_factor: number("high_freq_factor", 4.0)?,
            n_ctx_original: number("original_max_position_embeddings", 8192.0)?,
        };
        let factors = match is_llama3 {
            true => scaling.factors(n_rot),
            false => rotated_pairs(n_rot, number("partial_rotary_factor", 1.0)?),
        };
        let bytes: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
        let row_bytes = bytes.len() as u64;
        let source = Arc::new(Owned { bytes, row_bytes });
        let shape = row.shape(self.hparams);
        let tensor = Tensor::new(&row.name, shape, DType::F32, source);
        tensor.map(Some).map_err(|source| Error::Size {
            path: self.hf_config.path.clone(),
            tensor: row.name.clone(),
            source,
        })
    }
}

/// Returns frequency divisors that leave only a part of `n_rot / 2` pairs with a rotation.
fn rotated_pairs(n_rot: u64, part: f64) -> Vec<f32> {
    /// Divisor of pairs that do not turn.
    const STILL: f32 = 1e30;
    let n_rotated = (n_rot as f64 * part / 2.0) as u64;
    let factor = |pair| if pair < n_rotated { 1.0 } else { STILL };
    (0..n_rot / 2).map(factor).collect()
}

/// Small matrices with a large effect: F32 in every file.
const ALWAYS_F32: [&str; 3] = [
    ".ssm_conv1d.weight",
    ".ffn_gate_inp.weight",
    ".ffn_gate_inp_shexp.weight",
];

/// Returns the place of a tensor among those that are written first, or after them.
fn place(leading: &[&[&str]], tensor: &Tensor) -> (usize, u32, usize) {
    let name = mtp_layout::name_in_block(&tensor.name);
    let groups = leading.iter().enumerate();
    let mut places = groups.filter_map(|(group, names)| {
        let at = names.iter().position(|other| *other == name)?;
        Some((group, tensor.layer()?, at))
    });
    places.next().unwrap_or((leading.len(), 0, 0))
}

/// Rejects experts of which only some are stored as blocks.
fn check_alike(tensors: &[&StoredTensor]) -> Result<(), Error> {
    let kind = |tensor: &StoredTensor| match tensor.exponents {
        Some(_) => "pairs of four-bit floats",
        None => "numbers",
    };
    let first = tensors[0];
    match tensors.iter().find(|tensor| kind(tensor) != kind(first)) {
        None => Ok(()),
        Some(other) => Err(Error::MixedExperts {
            path: other.path(),
            tensor: other.name.clone(),
            found: kind(other),
            expected: kind(first),
            first: first.name.clone(),
        }),
    }
}

/// Rejects a tensor whose shape differs from the config.
fn check_shape(stored: &StoredTensor, form: &StoredForm) -> Result<(), Error> {
    // Convolutions are stored with a channel axis of size one that readers do not have.
    let without_ones =
        |shape: &[u64]| -> Vec<u64> { shape.iter().copied().filter(|&n| n != 1).collect() };
    // Several matrices may be stored as one with all their rows.
    let flat = |shape: &[u64]| {
        shape
            .split_first()
            .map(|(n, rest)| [*n, rest.iter().product()])
    };
    let mut found = stored.shape.clone();
    found.reverse();
    if flat(&found) == flat(&form.shape) || without_ones(&found) == without_ones(&form.shape) {
        return Ok(());
    }
    Err(Error::Shape {
        path: stored.path(),
        tensor: stored.name.clone(),
        found: stored.shape.clone(),
        expected: form.shape.iter().rev().copied().collect(),
    })
}

/// Formats `Name-Size-Finetune-Version-TYPE.gguf`; an MTP head has no size.
fn file_name(naming: &Naming, file_type: FileType, mtp: MtpMode) -> String {
    let name = naming.basename.as_ref().unwrap_or(&naming.name);
    let name = name.trim().replace([' ', '/'], "-");
    let head = mtp == MtpMode::Only;
    let encoding = file_type.name();
    let parts = [
        Some(if name.is_empty() { "model" } else { &name }),
        Some(naming.size_label.as_str()).filter(|_| !head),
        naming.finetune.as_deref(),
        naming.version.as_deref(),
        Some(&encoding),
    ];
    let parts: Vec<_> = parts
        .into_iter()
        .flatten()
        .map(|part| part.trim().replace([' ', '/'], "-"))
        .collect();
    let prefix = if head { "mtp-" } else { "" };
    format!("{prefix}{}.gguf", parts.join("-"))
}
