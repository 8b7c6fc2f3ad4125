//! Depthwise causal convolution.

use super::CausalConvOp;
use crate::backend::Step;
use crate::cpu::buffer::Buffer;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::math::silu;
use crate::cpu::weight::Weight;
use crate::cpu::{Cpu, parts};
use crate::ops::elementwise::cpu::EXP_WORK;
use crate::simd::{Kernel, LANES, Simd};

impl CausalConvOp for Cpu {
    fn causal_conv(
        &self,
        x: &Buffer,
        w: &Weight,
        bias: Option<&Weight>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let (n_channel, kernel) = (w.n_rows, w.n_cols);
        let taps = w.transposed();
        let bias = bias.map(Weight::to_f32);
        let work = steps.len() * n_channel * (kernel + EXP_WORK);
        // Channels are independent: each task has a range of them, in every row and every slot.
        let width = n_channel.div_ceil(self.threads());
        let width = width.next_multiple_of(TASK_CHANNELS);
        let states = ColumnsMut::split(state, n_channel, width);
        let tasks = states.zip(ColumnsMut::split(out, n_channel, width));
        self.run(work, tasks.enumerate(), |(i, (state, out))| Convolve {
            x,
            taps,
            bias: bias.as_deref(),
            steps,
            n_channel,
            first: i * width,
            state,
            out,
        });
    }
}

/// Channels per task are a multiple of this: whole cache lines of output.
const TASK_CHANNELS: usize = 32;

/// Convolves a range of channels for all tokens, and shifts each input into the state.
struct Convolve<'a> {
    /// `(n, n_channel)`
    x: &'a [f32],
    /// `(kernel, n_channel)`
    taps: &'a [f32],
    /// `(n_channel)`
    bias: Option<&'a [f32]>,
    steps: &'a [Step],
    n_channel: usize,
    /// The first channel.
    first: usize,
    /// Previous inputs, oldest first: `(slots, kernel - 1)` rows.
    state: ColumnsMut<'a>,
    /// `(n)` rows.
    out: ColumnsMut<'a>,
}

impl Kernel for Convolve<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let n_past = self.taps.len() / self.n_channel - 1;
        for step in self.steps {
            let write = step.write * n_past;
            let read = step.read.map_or(write, |read| read * n_past);
            if step.read.is_none() {
                let all = 0..self.state.n_cols();
                (0..n_past).for_each(|i| self.state.row(write + i, all.clone()).fill(0.0));
            }
            for part in parts(self.out.n_cols(), LANES) {
                let from = self.first + part.start;
                let mut acc = simd.lanes(|_| simd.splat(0.0));
                for i in 0..=n_past {
                    let x = if i < n_past {
                        &*self.state.row(read + i, part.clone())
                    } else {
                        &self.x[step.row * self.n_channel + from..][..part.len()]
                    };
                    let x = simd.load_partial(x);
                    let tap = &self.taps[i * self.n_channel + from..][..part.len()];
                    let tap = simd.load_partial(tap);
                    acc = simd
                        .lanes(|register| simd.mul_add(x[register], tap[register], acc[register]));
                    // Shifts oldest first, so that no input is overwritten before it is read.
                    if i > 0 {
                        simd.store_partial(x, self.state.row(write + i - 1, part.clone()));
                    }
                }
                let mut sums = [0.0; LANES];
                simd.store_partial(acc, &mut sums);
                if let Some(bias) = self.bias {
                    let bias = &bias[from..][..part.len()];
                    sums.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
                }
                sums.iter_mut().for_each(|x| *x = silu(*x));
                let out = self.out.row(step.row, part.clone());
                out.copy_from_slice(&sums[..part.len()]);
            }
        }
    }
}
