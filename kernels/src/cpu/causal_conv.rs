//! Depthwise causal convolution.

use super::Cpu;
use super::math::silu;
use super::simd::{Kernel, Simd};
use super::weight::Weight;
use crate::backend::Step;

/// [`Backend::causal_conv`](crate::backend::Backend::causal_conv).
pub(super) fn causal_conv(
    cpu: &Cpu,
    x: &[f32],
    w: &Weight,
    steps: &[Step],
    state: &mut [f32],
    out: &mut [f32],
) {
    let (n_channel, kernel) = (w.n_rows, w.n_cols);
    let taps = w.transposed();
    let slot_len = (kernel - 1) * n_channel;
    for step in steps {
        let x = &x[step.row * n_channel..][..n_channel];
        let out = &mut out[step.row * n_channel..][..n_channel];
        let write = step.write * slot_len..(step.write + 1) * slot_len;
        match step.read {
            Some(read) => state.copy_within(read * slot_len..(read + 1) * slot_len, write.start),
            None => state[write.clone()].fill(0.0),
        }
        let state = &mut state[write];
        cpu.run_one(Convolve {
            x,
            taps,
            state,
            out,
        });
    }
}

/// One token: convolves, then moves its input into the state.
struct Convolve<'a> {
    /// `(n_channel)`
    x: &'a [f32],
    /// `(kernel, n_channel)`
    taps: &'a [f32],
    /// `(kernel - 1, n_channel)`
    state: &'a mut [f32],
    /// `(n_channel)`
    out: &'a mut [f32],
}

impl Kernel for Convolve<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let n_channel = self.x.len();
        let past = self.state.chunks_exact(n_channel);
        self.out.fill(0.0);
        for (x, taps) in past.chain([self.x]).zip(self.taps.chunks_exact(n_channel)) {
            for ((out, &x), &tap) in self.out.iter_mut().zip(x).zip(taps) {
                *out = x.mul_add(tap, *out);
            }
        }
        for out in self.out {
            *out = silu(*out);
        }
        let oldest = n_channel.min(self.state.len());
        self.state.copy_within(oldest.., 0);
        let newest = self.state.len() - oldest;
        self.state[newest..].copy_from_slice(&self.x[..oldest]);
    }
}
