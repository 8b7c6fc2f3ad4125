//! Hyper-connections.

use bytemuck::NoUninit;

use super::HyperConnectionOp;
use crate::backend::StreamShape;
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::{Buffer, Weight};
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count, kernel};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "hyper_connection",
    text: include_str!("hyper_connection.cu"),
    compiled_for: CompiledFor::Single,
};

impl HyperConnectionOp for Cuda {
    fn stream_weights(
        &self,
        shape: &StreamShape,
        mixes: &Buffer,
        scale: &Weight,
        base: &Weight,
        n: usize,
        out: &mut Buffer,
    ) {
        let args = Weights {
            mixes: mixes.first(n * shape.n_weight),
            scale: scale.numbers(self),
            base: base.numbers(self),
            out: out.first_mut(n * shape.n_weight),
            n: count(n),
            n_stream: count(shape.n_stream),
            n_weight: count(shape.n_weight),
            n_iteration: count(shape.n_iteration),
            eps: shape.eps,
            unused: 0,
        };
        let grid = Grid::elements(n, 32);
        // SAFETY: the arguments are the struct of the kernel; the buffers hold `n` rows of weights.
        unsafe { self.launch(kernel("hyper_connection", "stream_weights"), grid, &args) };
    }

    fn gather_streams(
        &self,
        shape: &StreamShape,
        x: &Buffer,
        weights: &Buffer,
        n: usize,
        out: &mut Buffer,
    ) {
        let x = x.first(n * shape.n_stream * shape.dim);
        let part = out.first_mut(n * shape.dim);
        mix(self, "gather_streams", shape, x, weights, part, n);
    }

    fn scatter_streams(
        &self,
        shape: &StreamShape,
        x: &mut Buffer,
        output: &Buffer,
        weights: &Buffer,
        n: usize,
    ) {
        if self.has_room("residual streams", shape.n_stream, MAX_STREAMS) {
            let x = x.first_mut(n * shape.n_stream * shape.dim);
            let part = output.first(n * shape.dim);
            mix(self, "scatter_streams", shape, x, weights, part, n);
        }
    }
}

/// Launches a kernel that reads or writes `n` rows of streams.
fn mix(
    cuda: &Cuda,
    name: &'static str,
    shape: &StreamShape,
    x: Address,
    weights: &Buffer,
    part: Address,
    n: usize,
) {
    let args = Streams {
        x,
        weights: weights.first(n * shape.n_weight),
        part,
        len: (n * shape.dim) as u64,
        dim: count(shape.dim),
        n_stream: count(shape.n_stream),
        n_weight: count(shape.n_weight),
        unused: 0,
    };
    let grid = Grid::elements(n * shape.dim, 256);
    // SAFETY: the arguments are the struct of the kernels; the buffers hold `n` rows.
    unsafe { cuda.launch(kernel("hyper_connection", name), grid, &args) };
}

/// Maximum number of streams.
const MAX_STREAMS: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Weights {
    mixes: Address,
    scale: Address,
    base: Address,
    out: Address,
    n: u32,
    n_stream: u32,
    n_weight: u32,
    n_iteration: u32,
    eps: f32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Streams {
    x: Address,
    weights: Address,
    part: Address,
    len: u64,
    dim: u32,
    n_stream: u32,
    n_weight: u32,
    unused: u32,
}
