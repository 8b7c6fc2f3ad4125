//! Attention that several architectures share.

use kernels::backend::{AttentionInput, AttentionShape, Backend, Rope, RopeLayout};
use schemas::arch::Hparams;

use crate::cache::LayerCache;
use crate::error::ModelError;

use super::Pass;
use super::rope::{frequencies, rope};

/// Softmax attention over the cache. The projections before it differ by architecture.
pub(super) struct Attention {
    shape: AttentionShape,
    rope: Rope,
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
        Ok(Attention {
            shape: AttentionShape {
                n_head: hparams.n_head as usize,
                n_head_kv: hparams.n_head_kv as usize,
                head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
                window: None,
            },
            rope: rope(hparams, layout, head_dim, freq_factors)?,
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
        let (backend, positions) = (pass.backend, pass.positions);
        backend.rope(&mut pass.s.q, &self.rope, self.shape.n_head, positions);
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
        backend.attention(&self.shape, input, keys, &mut s.attended);
    }

    /// Applies RoPE to `s.k`, and stores `s.k` and `s.v`.
    pub(super) fn store<B: Backend>(&self, pass: &mut Pass<'_, B>) {
        let LayerCache::Kv(cache) = &mut *pass.cache else {
            unreachable!("an attention layer is loaded with a key-value cache")
        };
        let (backend, s) = (pass.backend, &mut *pass.s);
        backend.rope(&mut s.k, &self.rope, self.shape.n_head_kv, pass.positions);
        backend.store_rows(&s.k, &pass.places.rows, &mut cache.k);
        backend.store_rows(&s.v, &pass.places.rows, &mut cache.v);
    }
}
