//! Attention that several architectures share.

use kernels::backend::{AttentionInput, AttentionShape, Backend, Rope, RopeLayout};
use schemas::arch::Hparams;

use crate::cache::LayerCache;
use crate::error::ModelError;

use super::Pass;
use super::rope::{frequencies, rope, sections_of};
use super::scratch::Scratch;
use crate::rope_positions::N_AXES;

/// Softmax attention over the cache. The projections before it differ by architecture.
pub(super) struct Attention {
    shape: AttentionShape,
    rope: Rope,
    /// The same for positions with several coordinates, one for each.
    sections: Option<Box<[Rope; N_AXES]>>,
    /// True if a window is applied to the keys of whole blocks.
    windowed: bool,
}

impl Attention {
    /// Creates the attention of a model; `freq_factors` divide the RoPE frequencies, one per pair.
    pub(super) fn new(
        hparams: &Hparams,
        layout: RopeLayout,
        freq_factors: Option<&[f32]>,
    ) -> Result<Attention, ModelError> {
        let head_dim = hparams.head_dim as usize;
        let rope = rope(hparams, layout, head_dim, freq_factors)?;
        let sections = hparams.rope_sections;
        Ok(Attention {
            sections: sections.map(|counts| Box::new(sections_of(&rope, counts))),
            shape: AttentionShape {
                n_head: hparams.n_head as usize,
                n_head_kv: hparams.n_head_kv as usize,
                head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
                window: None,
            },
            rope,
            windowed: false,
        })
    }

    /// Returns the attention of one block: with its window, if it has one, and that window's RoPE
    /// base.
    pub(super) fn of_block(mut self, hparams: &Hparams, block: u32) -> Attention {
        if let Some(window) = hparams.window(block) {
            self.shape.window = Some(window.size as usize);
            if let Some(base) = window.rope_freq_base {
                self.rope.inv_freq = frequencies(base, hparams.n_rot).collect();
                self.rope.magnitude = 1.0;
            }
        }
        self
    }

    /// Lets every token of a block attend to the whole block; a window only limits the keys before it.
    pub(super) fn of_whole_blocks(mut self) -> Attention {
        self.windowed = self.shape.window.take().is_some();
        self
    }

    /// Leaves the token's own place in the window empty: the token has no key.
    pub(super) fn without_own_key(mut self) -> Attention {
        let others = |window: usize| window.saturating_sub(1).max(1);
        self.shape.window = self.shape.window.map(others);
        self
    }

    /// Replaces the factor on `q . k`.
    pub(super) fn scaled(mut self, scale: f32) -> Attention {
        self.shape.scale = scale;
        self
    }

    /// Applies RoPE to `s.q` and `s.k`, stores `s.k` and `s.v`, and attends; the result is in
    /// `s.attended`.
    pub(super) fn forward<B: Backend>(&self, pass: &mut Pass<'_, B>) {
        self.forward_with(pass, None);
    }

    /// Does the same with a sink for each query head, if the layer has sinks.
    pub(super) fn forward_with<B: Backend>(
        &self,
        pass: &mut Pass<'_, B>,
        sinks: Option<&B::Weight>,
    ) {
        self.store(pass);
        self.attend(pass, sinks);
    }

    /// Applies RoPE to `s.q`, and attends to the keys and values in the cache; the result is in `s.attended`.
    pub(super) fn attend<B: Backend>(&self, pass: &mut Pass<'_, B>, sinks: Option<&B::Weight>) {
        self.rotate(pass, |s| &mut s.q, self.shape.n_head);
        let LayerCache::Kv(cache) = &mut *pass.cache else {
            unreachable!("an attention layer is loaded with a key-value cache")
        };
        let s = &mut *pass.s;
        let keys = match self.windowed {
            true => &pass.places.windowed,
            false => &pass.places.keys,
        };
        let input = AttentionInput {
            q: &s.q,
            k: &cache.k,
            v: &cache.v,
            sinks,
        };
        pass.backend
            .attention(&self.shape, input, keys, &mut s.attended);
    }

    /// Applies RoPE to `s.k`, and stores `s.k` and `s.v`.
    pub(super) fn store<B: Backend>(&self, pass: &mut Pass<'_, B>) {
        self.rotate(pass, |s| &mut s.k, self.shape.n_head_kv);
        let LayerCache::Kv(cache) = &mut *pass.cache else {
            unreachable!("an attention layer is loaded with a key-value cache")
        };
        let (backend, s) = (pass.backend, &mut *pass.s);
        backend.store_rows(&s.k, &pass.places.rows, &mut cache.k);
        backend.store_rows(&s.v, &pass.places.rows, &mut cache.v);
    }

    /// Applies RoPE to the heads of a buffer.
    fn rotate<B: Backend>(
        &self,
        pass: &mut Pass<'_, B>,
        buffer: impl Fn(&mut Scratch<B>) -> &mut B::Buffer,
        n_head: usize,
    ) {
        let x = buffer(pass.s);
        match (pass.axes, &self.sections) {
            (Some(axes), Some(sections)) => {
                for (rope, positions) in sections.iter().zip(axes) {
                    pass.backend.rope(x, rope, n_head, positions);
                }
            }
            _ => pass.backend.rope(x, &self.rope, n_head, pass.positions),
        }
    }
}
