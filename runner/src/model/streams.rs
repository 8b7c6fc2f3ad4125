//! Hyper-connections: several residual streams, which are mixed before and after each part of a layer, and before the
//! output.

use kernels::backend::{Backend, Columns, StreamShape};
use schemas::arch::Hparams;

use crate::error::ModelError;
use crate::memory::Memory;

use super::matrix::Matrix;
use super::scratch::Scratch;
use super::unweighted_norm;
use super::weights::Weights;

/// The weights of one mix of streams.
pub(super) struct Mixer<B: Backend> {
    /// (n_weight, n_stream * n_embd)
    mix: Matrix<B>,
    scale: B::Weight,
    base: B::Weight,
    shape: StreamShape,
    norm_eps: f32,
}

/// Activations of hyper-connections.
pub(super) struct StreamScratch<M: Memory> {
    /// Normalised streams: (n, n_stream * n_embd)
    normed: M::Floats,
    /// Products of the streams, and weights: (n, n_weight)
    mixes: M::Floats,
    weights: M::Floats,
    /// Input of a part of a layer, or of the final norm: (n, n_embd)
    pub(super) input: M::Floats,
}

impl<M: Memory> StreamScratch<M> {
    /// Allocates buffers for batches of up to `n_batch` tokens; empty ones if the model has one stream.
    pub(super) fn new(memory: &M, hparams: &Hparams, n_batch: usize) -> StreamScratch<M> {
        let n_stream = hparams.compressed.n_stream as usize;
        let n_embd = hparams.n_embd as usize;
        let rows = |width: usize| memory.scratch(n_batch * width);
        let n_weight = StreamShape::connection(n_stream);
        StreamScratch {
            normed: rows(n_stream * n_embd),
            mixes: rows(n_weight),
            weights: rows(n_weight),
            input: rows(n_stream.min(1) * n_embd),
        }
    }
}

impl<B: Backend> Mixer<B> {
    /// Loads the connection of a part of the current block.
    pub(super) fn connection(
        weights: &mut Weights<'_, B>,
        part: &str,
    ) -> Result<Mixer<B>, ModelError> {
        let n_stream = weights.hparams.compressed.n_stream as usize;
        let n_weight = StreamShape::connection(n_stream);
        Mixer::load(weights, &format!("hc_{part}"), n_weight)
    }

    /// Loads the mixer before the output; `None` if the model has one stream.
    pub(super) fn output(weights: &mut Weights<'_, B>) -> Result<Option<Mixer<B>>, ModelError> {
        match weights.hparams.compressed.n_stream as usize {
            0 => Ok(None),
            n_stream => Mixer::load(weights, "output_hc", n_stream).map(Some),
        }
    }

    fn load(
        weights: &mut Weights<'_, B>,
        name: &str,
        n_weight: usize,
    ) -> Result<Mixer<B>, ModelError> {
        let hparams = &weights.hparams;
        let shape = StreamShape {
            n_stream: hparams.compressed.n_stream as usize,
            dim: hparams.n_embd as usize,
            n_weight,
            eps: hparams.compressed.eps,
            n_iteration: hparams.compressed.n_iteration as usize,
        };
        let norm_eps = hparams.rms_eps;
        Ok(Mixer {
            mix: weights.need_matrix(&format!("{name}_fn.weight"))?,
            scale: weights.need(&format!("{name}_scale.weight"))?,
            base: weights.need(&format!("{name}_base.weight"))?,
            shape,
            norm_eps,
        })
    }

    /// Mixes the streams in `s.x` to `s.streams.input`.
    pub(super) fn gather(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        let (shape, streams) = (&self.shape, &mut s.streams);
        let width = shape.n_stream * shape.dim;
        backend.copy_rows(&s.x, 0, &mut streams.normed, 0, width, n);
        unweighted_norm(backend, &mut streams.normed, self.norm_eps, width, n);
        (self.mix).multiply(backend, &streams.normed, n, &mut streams.mixes);
        let weights = &mut streams.weights;
        backend.stream_weights(shape, &streams.mixes, &self.scale, &self.base, n, weights);
        backend.gather_streams(shape, &s.x, weights, n, &mut streams.input);
    }

    /// Adds the output of a part, `s.ffn_out`, to the streams, with the weights of the last [`Mixer::gather`].
    pub(super) fn scatter(&self, backend: &B, n: usize, s: &mut Scratch<B>) {
        let weights = &s.streams.weights;
        backend.scatter_streams(&self.shape, &mut s.x, &s.ffn_out, weights, n);
    }
}

/// Copies the first `n` rows of `s.x`, (n, n_embd), to all streams.
pub(super) fn spread<B: Backend>(
    backend: &B,
    n_stream: usize,
    n_embd: usize,
    n: usize,
    s: &mut Scratch<B>,
) {
    if n_stream == 1 {
        return;
    }
    backend.copy_rows(&s.x, 0, &mut s.normed, 0, n_embd, n);
    let place = |stride, offset| Columns { stride, offset };
    for stream in 0..n_stream {
        let to = place(n_stream * n_embd, stream * n_embd);
        backend.copy_columns(&s.normed, place(n_embd, 0), &mut s.x, to, n_embd, n);
    }
}

/// Computes the mean of the streams in `s.x` into `s.normed`.
pub(super) fn mean<B: Backend>(
    backend: &B,
    n_stream: usize,
    n_embd: usize,
    n: usize,
    s: &mut Scratch<B>,
) {
    let place = |stride, offset| Columns { stride, offset };
    let (to, width) = (place(n_embd, 0), n_stream * n_embd);
    backend.copy_columns(&s.x, place(width, 0), &mut s.normed, to, n_embd, n);
    for stream in 1..n_stream {
        let from = place(width, stream * n_embd);
        backend.copy_columns(&s.x, from, &mut s.ffn_out, to, n_embd, n);
        backend.add(&mut s.normed, &s.ffn_out, n * n_embd);
    }
    backend.scale(&mut s.normed, 1.0 / n_stream as f32, n * n_embd);
}
