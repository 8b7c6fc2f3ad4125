//! Loading of a [`Model`] from a plan: its input, its layers, its output head.

use std::ops::Range;
use std::sync::Arc;

use kernels::backend::Backend;
use schemas::arch::nextn::{self, LAYER_OUTPUT_NORM, SHARED_HEAD_HEAD, SHARED_HEAD_NORM};
use schemas::arch::{
    BlockDraft, CENTROIDS, CONFIDENCE, CONFIDENCE_BIAS, EH_PROJ, ENC_OUTPUT_NORM, FC, Hparams,
    HparamsError, MARKOV_W1, MARKOV_W2, POST_PROJECTION, PRE_PROJECTION, keys,
};
use schemas::gguf::Plan;
use schemas::vocab::D2T;

use crate::error::ModelError;
use crate::observe::InputObserver;

use super::assistant::{Assistant, Clusters, lent_blocks};
use super::dflash::Markov;
use super::dflash2::Selector;
use super::gemma4::PerLayerInput;
use super::matrix::Matrix;
use super::streams::Mixer;
use super::weights::{Shared, Weights};
use super::{Fusion, Input, Model, layer_loader};

/// Returns the factor on the embeddings, if the architecture has one.
fn embd_scale(hparams: &Hparams) -> Option<f32> {
    let scaled = hparams.arch.scaled_embeddings;
    scaled.then(|| (hparams.n_embd as f32).sqrt())
}

/// Loads the models of a run. Tensors of the vocabulary that several of them use are loaded once,
/// such as an embedding and output head that an MTP head shares with its target.
pub struct Loader<'a, B: Backend> {
    backend: &'a B,
    shared: Shared<B>,
    observer: Option<Arc<dyn InputObserver>>,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Creates a loader for a backend.
    pub fn new(backend: &'a B) -> Loader<'a, B> {
        Loader {
            backend,
            shared: Shared::new(),
            observer: None,
        }
    }

    /// Sets the observer of the models that are loaded next.
    pub fn observe(&mut self, observer: Option<Arc<dyn InputObserver>>) {
        self.observer = observer;
    }

    fn weights<'s>(&'s self, plan: &'s Plan) -> Result<Weights<'s, B>, ModelError> {
        Weights::new(self.backend, &self.shared, plan, self.observer.as_ref())
    }

    /// Opens the weights of the target for a draft that uses some of them. They are not the draft's, so its
    /// observer is not theirs.
    fn lender<'s>(&'s self, target: &'s Plan) -> Result<Weights<'s, B>, ModelError> {
        Weights::new(self.backend, &self.shared, target, None)
    }

    /// Loads a model without its MTP head: a target, or a draft model.
    ///
    /// # Errors
    /// A tensor is missing, unknown, misshapen, or of a type without a kernel.
    pub fn target(&self, plan: &Plan) -> Result<Model<B>, ModelError> {
        let mut weights = self.weights(plan)?;
        if weights.hparams.arch.is_draft() {
            return Err(ModelError::DraftOnly);
        }
        if weights.hparams.n_mtp() > 0 && !weights.contains("blk.0.attn_norm.weight") {
            return Err(ModelError::HeadOnly);
        }
        let input = Input::Tokens {
            scale: embd_scale(&weights.hparams),
            embd: weights.need_shared("token_embd.weight")?,
            per_layer: PerLayerInput::load(&mut weights)?.map(Box::new),
        };
        let norm = weights.need("output_norm.weight")?;
        let head = output_head(&mut weights)?;
        let blocks = 0..weights.hparams.n_layer;
        finish(&mut weights, input, blocks, norm, head)
    }

    /// Loads the MTP heads of a file: after the layers of a model, or alone in a separate file. The model
    /// is the first head, with the others [chained](Model::n_heads) to it.
    ///
    /// # Errors
    /// The file has no head, or one of its tensors is missing or unusable.
    pub fn mtp_head(&self, plan: &Plan) -> Result<Model<B>, ModelError> {
        let mut weights = self.weights(plan)?;
        let blocks = mtp_blocks(&weights.hparams)?;
        let mut heads = Vec::new();
        for block in blocks.clone() {
            if !weights.contains(&format!("blk.{block}.{EH_PROJ}")) {
                let reason =
                    format!("the keys declare one, but tensor blk.{block}.{EH_PROJ} is missing");
                return Err(ModelError::NoMtpHead { reason });
            }
            let mut head = mtp_head(&mut weights, block)?;
            head.caches = vec![(block - blocks.start) as usize];
            heads.push(head);
        }
        let mut first = heads.remove(0);
        first.blocks = blocks;
        // A prompt is evaluated by every head.
        (first.pass_bytes, first.multiply_adds) = (weights.pass_bytes, weights.multiply_adds);
        first.chained = heads;
        Ok(first)
    }

    /// Loads an EAGLE-3 draft and the fusion of its target's hidden states. If the draft has no
    /// embedding or output head, the target's is used.
    ///
    /// # Errors
    /// The file is not such a draft, one of its tensors is missing or unusable, or one of the
    /// target's has another width than the draft.
    pub fn eagle3(&self, plan: &Plan, target: &Plan) -> Result<(Model<B>, Fusion<B>), ModelError> {
        let mut weights = self.weights(plan)?;
        let features = weights.hparams.features.clone();
        let Some(features) = features.filter(|features| features.block.is_none()) else {
            let arch = weights.hparams.arch.name;
            return Err(ModelError::NoEagle3 { arch });
        };
        let fusion = Fusion {
            norm: match features.norm_before_fc {
                true => Some(weights.need(ENC_OUTPUT_NORM)?),
                false => None,
            },
            norm_after: None,
            fc: weights.need_matrix(FC)?,
            eps: weights.hparams.rms_eps,
        };
        let norm = weights.need("output_norm.weight")?;
        let (own_embd, own_head) = (
            weights.get_shared("token_embd.weight")?,
            weights.get_shared("output.weight")?,
        );
        let mut lender = self.lender(target)?;
        let (ours, theirs) = (weights.hparams.n_embd, lender.hparams.n_embd);
        let borrows = own_embd.is_none() || own_head.is_none();
        if borrows && ours != theirs {
            return Err(ModelError::BorrowedWidth { ours, theirs });
        }
        let embd = match own_embd {
            Some(own) => own,
            None => lender.need_shared("token_embd.weight")?,
        };
        let tokens = match own_head {
            Some(_) => weights.map(D2T)?,
            None => None,
        };
        let head = match own_head {
            Some(own) => own,
            None => output_head(&mut lender)?,
        };
        weights.block = Some(0);
        let input = Input::Eagle3 {
            embd,
            norm: weights.need("attn_norm.weight")?,
        };
        weights.block = None;
        let blocks = 0..weights.hparams.n_layer;
        let mut model = finish(&mut weights, input, blocks, norm, head)?;
        model.tokens = tokens;
        Ok((model, fusion))
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Loads a DFlash, DFlash2 or DSpark draft and the fusion of its target's hidden states. If the draft has no
    /// embedding or output head, the target's is used.
    ///
    /// # Errors
    /// The file is not such a draft or of an unsupported kind, one of its tensors is missing or unusable, or
    /// one of the target's has another width than the draft.
    pub fn block_draft(
        &self,
        plan: &Plan,
        target: &Plan,
    ) -> Result<(Model<B>, Fusion<B>), ModelError> {
        let mut weights = self.weights(plan)?;
        let arch = weights.hparams.arch.name;
        let features = weights.hparams.features.as_ref();
        let Some(block) = features.and_then(|features| features.block) else {
            return Err(ModelError::NoBlockDraft { arch });
        };
        check_block(&weights.hparams, &block, plan)?;
        let fusion = Fusion {
            norm: None,
            norm_after: Some(weights.need(ENC_OUTPUT_NORM)?),
            fc: weights.need_matrix(FC)?,
            eps: weights.hparams.rms_eps,
        };
        let norm = weights.need("output_norm.weight")?;
        let own_embd = weights.get_shared("token_embd.weight")?;
        let own_head = weights.get_shared("output.weight")?;
        let tokens = match own_head {
            Some(_) => weights.map(D2T)?,
            None => None,
        };
        let mut lender = self.lender(target)?;
        let (ours, theirs) = (weights.hparams.n_embd, lender.hparams.n_embd);
        if own_embd.is_none() && ours != theirs {
            return Err(ModelError::BorrowedWidth { ours, theirs });
        }
        let head = match (own_head, &own_embd) {
            (Some(own), _) => own,
            (None, Some(own)) => Arc::clone(own),
            (None, None) => output_head(&mut lender)?,
        };
        let embd = match own_embd {
            Some(own) => own,
            None => lender.need_shared("token_embd.weight")?,
        };
        let markov = match block.markov_rank {
            0 => None,
            rank => Some(Markov {
                embd: weights.need(MARKOV_W1)?,
                bias: weights.need_matrix(MARKOV_W2)?,
                confidence: weights.get_matrix(CONFIDENCE)?,
                confidence_bias: weights.get(CONFIDENCE_BIAS)?,
                rank: rank as usize,
            }),
        };
        let number = |suffix| plan.metadata.f32(&format!("{arch}.{suffix}"));
        let scale = number(keys::EMBEDDING_SCALE)?;
        let mut logit_scale = number(keys::LOGIT_SCALE)?;
        let selector = Selector::load(&mut weights)?;
        if selector.is_none() {
            // As in llama.cpp; it does not change the order of tokens.
            (logit_scale, weights.hparams.logit_softcap) = (None, None);
        }
        let blocks = 0..weights.hparams.n_layer;
        let input = Input::Tokens {
            embd,
            scale,
            per_layer: None,
        };
        let mut model = finish(&mut weights, input, blocks, norm, head)?;
        model.tokens = tokens;
        (model.markov, model.selector) = (markov, selector);
        model.logit_scale = logit_scale;
        Ok((model, fusion))
    }
}

impl<B: Backend> Loader<'_, B> {
    /// Loads an assistant, whose layers attend to the keys and values of the target and whose input has the
    /// target's embeddings.
    ///
    /// # Errors
    /// The file is not an assistant, one of its tensors is missing or unusable, or the target's widths or heads
    /// differ.
    pub fn assistant(&self, plan: &Plan, target: &Plan) -> Result<Model<B>, ModelError> {
        let mut weights = self.weights(plan)?;
        let Some(own) = weights.hparams.assistant else {
            let arch = weights.hparams.arch.name;
            return Err(ModelError::NoAssistant { arch });
        };
        let mut lender = self.lender(target)?;
        let (ours, theirs) = (own.n_embd_target, lender.hparams.n_embd);
        if ours != theirs {
            return Err(ModelError::TargetWidth { ours, theirs });
        }
        let lent = lent_blocks(&weights.hparams, &lender.hparams)?;
        let input = Input::Assistant {
            embd: lender.need_shared("token_embd.weight")?,
            scale: (theirs as f32).sqrt(),
            projection: weights.need_matrix(PRE_PROJECTION)?,
            n_embd_target: theirs as usize,
        };
        let clusters = Clusters::load(&mut weights)?;
        let head = match clusters {
            Some(_) => weights.need_shared(CENTROIDS)?,
            None => weights.need_shared("token_embd.weight")?,
        };
        let assistant = Assistant {
            projection: weights.need_matrix(POST_PROJECTION)?,
            clusters,
        };
        let norm = weights.need("output_norm.weight")?;
        // As in llama.cpp; it does not change the order of tokens.
        weights.hparams.logit_softcap = None;
        let blocks = 0..weights.hparams.n_layer;
        let mut model = finish(&mut weights, input, blocks, norm, head)?;
        model.caches = lent.into_iter().map(|block| block as usize).collect();
        model.assistant = Some(assistant);
        Ok(model)
    }
}

/// Loads an assistant that shares no tensors with others, see [`Loader::assistant`].
///
/// # Errors
/// See [`Loader::assistant`].
pub fn load_assistant<B: Backend>(
    backend: &B,
    plan: &Plan,
    target: &Plan,
) -> Result<Model<B>, ModelError> {
    Loader::new(backend).assistant(plan, target)
}

/// Rejects block drafts that need computations that are not implemented.
fn check_block(hparams: &Hparams, block: &BlockDraft, plan: &Plan) -> Result<(), ModelError> {
    let key = |suffix: &str| format!("{}.{suffix}", hparams.arch.name);
    let n_out = hparams.n_vocab_draft;
    if block.selector_rank > 0 && !(1..=n_out).contains(&block.n_candidate) {
        return Err(HparamsError::Range {
            key: key(keys::SELECTOR_TOP_K),
            found: block.n_candidate,
            expected: format!("1 to {n_out}, the number of draft tokens"),
        }
        .into());
    }
    let n_lead = u64::from(!block.from_anchor);
    if block.size <= n_lead {
        return Err(HparamsError::Range {
            key: key(keys::BLOCK_SIZE),
            found: block.size,
            expected: format!(
                "at least {}: the first token of a block is the newest one",
                n_lead + 1
            ),
        }
        .into());
    }
    let scale = key("attention.scale");
    if let Some(found) = plan.metadata.f32(&scale)? {
        return Err(HparamsError::Unsupported { key: scale, found }.into());
    }
    if u64::from(block.mask_token) >= hparams.n_vocab {
        return Err(HparamsError::Range {
            key: keys::MASK_TOKEN_ID.to_owned(),
            found: block.mask_token.into(),
            expected: format!("a token below {}", hparams.n_vocab),
        }
        .into());
    }
    Ok(())
}

/// Loads a block draft that shares no tensors with others, see [`Loader::block_draft`].
///
/// # Errors
/// See [`Loader::block_draft`].
pub fn load_block_draft<B: Backend>(
    backend: &B,
    plan: &Plan,
    target: &Plan,
) -> Result<(Model<B>, Fusion<B>), ModelError> {
    Loader::new(backend).block_draft(plan, target)
}

/// Loads a model that shares no tensors with others, see [`Loader::target`].
///
/// # Errors
/// See [`Loader::target`].
pub fn load_target<B: Backend>(backend: &B, plan: &Plan) -> Result<Model<B>, ModelError> {
    Loader::new(backend).target(plan)
}

/// Loads a head that shares no tensors with others, see [`Loader::mtp_head`].
///
/// # Errors
/// See [`Loader::mtp_head`].
pub fn load_mtp_head<B: Backend>(backend: &B, plan: &Plan) -> Result<Model<B>, ModelError> {
    Loader::new(backend).mtp_head(plan)
}

/// Loads a draft that shares no tensors with others, see [`Loader::eagle3`].
///
/// # Errors
/// See [`Loader::eagle3`].
pub fn load_eagle3<B: Backend>(
    backend: &B,
    plan: &Plan,
    target: &Plan,
) -> Result<(Model<B>, Fusion<B>), ModelError> {
    Loader::new(backend).eagle3(plan, target)
}

/// Returns the blocks of a file's MTP heads, from the metadata keys.
///
/// # Errors
/// The keys declare no MTP layer.
pub(crate) fn mtp_blocks(hparams: &Hparams) -> Result<Range<u32>, ModelError> {
    match hparams.n_mtp() {
        0 => Err(ModelError::NoMtpHead {
            reason: "key nextn_predict_layers is absent or 0".to_owned(),
        }),
        _ => Ok(hparams.n_layer..hparams.n_block()),
    }
}

/// Loads the output head; if the file has none, it is tied to the embedding.
fn output_head<B: Backend>(weights: &mut Weights<'_, B>) -> Result<Arc<Matrix<B>>, ModelError> {
    match weights.get_shared("output.weight")? {
        Some(head) => Ok(head),
        None => weights.need_shared("token_embd.weight"),
    }
}

/// Loads an MTP head; tensors that it does not have itself are the model's.
fn mtp_head<B: Backend>(weights: &mut Weights<'_, B>, block: u32) -> Result<Model<B>, ModelError> {
    weights.block = Some(block);
    let eh_proj = weights.need_matrix(EH_PROJ)?;
    let enorm = weights.need("nextn.enorm.weight")?;
    let hnorm = weights.need("nextn.hnorm.weight")?;
    let own_embd = weights.get_shared("nextn.embed_tokens.weight")?;
    let own_norm = match weights.get(SHARED_HEAD_NORM)? {
        None => weights.get(LAYER_OUTPUT_NORM)?,
        own => own,
    };
    let own_head = weights.get_shared(SHARED_HEAD_HEAD)?;
    // Only a head's own output head can have a reduced vocabulary.
    let tokens = match own_head {
        Some(_) => weights.map(nextn::D2T)?,
        None => None,
    };
    weights.block = None;
    let embd = match own_embd {
        Some(own) => own,
        None => weights.need_shared("token_embd.weight")?,
    };
    let norm = match own_norm {
        Some(own) => own,
        None => weights.need("output_norm.weight")?,
    };
    let head = match own_head {
        Some(own) => own,
        None => output_head(weights)?,
    };
    let input = Input::Mtp {
        embd,
        enorm,
        hnorm,
        eh_proj,
    };
    let mut model = finish(weights, input, block..block + 1, norm, head)?;
    model.tokens = tokens;
    let mtp = weights.hparams.arch.mtp.as_ref();
    model.centered_norm = mtp.is_some_and(|mtp| mtp.centered_norm);
    Ok(model)
}

/// Loads the given blocks and assembles the model.
fn finish<B: Backend>(
    weights: &mut Weights<'_, B>,
    input: Input<B>,
    blocks: Range<u32>,
    norm: B::Weight,
    head: Arc<Matrix<B>>,
) -> Result<Model<B>, ModelError> {
    let arch = weights.hparams.arch.name;
    let load = layer_loader::<B>(arch).ok_or(ModelError::NoForwardPass { arch })?;
    let mut layers = Vec::new();
    for block in blocks.clone() {
        weights.block = Some(block);
        layers.push(load(weights)?);
    }
    weights.block = None;
    let mixer = Mixer::output(weights)?;
    let (pass_bytes, multiply_adds) = (weights.pass_bytes, weights.multiply_adds);
    let cache = |block: u32| (weights.hparams.kv_blocks[block as usize] - blocks.start) as usize;
    Ok(Model {
        hparams: weights.hparams.clone(),
        caches: blocks.clone().map(cache).collect(),
        blocks,
        pass_bytes,
        multiply_adds,
        taps: Vec::new(),
        tokens: None,
        input,
        layers,
        norm,
        mixer,
        centered_norm: false,
        head,
        chained: Vec::new(),
        assistant: None,
        markov: None,
        selector: None,
        logit_scale: None,
    })
}
