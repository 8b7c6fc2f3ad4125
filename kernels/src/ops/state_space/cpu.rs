//! The state space recurrence of Mamba-2.

use super::StateSpaceOp;
use crate::backend::{StateSpaceInput, StateSpaceShape, Step};
use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::math::{exp, softplus};
use crate::cpu::recurrence::{Recurrence, StateColumns};
use crate::simd::{Kernel, Simd};

impl StateSpaceOp for Cpu {
    fn state_space(
        &self,
        shape: &StateSpaceShape,
        input: StateSpaceInput<'_, Self>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let input = &input;
        let (n_head, head_dim, len) = (shape.n_head, shape.head_dim, shape.state_len());
        let (dt_bias, a, d) = (input.dt_bias.to_f32(), input.a.to_f32(), input.d.to_f32());
        let work = 2 * steps.len() * n_head * len;
        // Heads are independent: each task has one, in every slot and every row.
        let slots = ColumnsMut::split(state, n_head * len, len);
        let tasks = slots.zip(ColumnsMut::split(out, n_head * head_dim, head_dim));
        self.run(work, tasks.enumerate(), |(head, (slots, out))| Advance {
            shape,
            input,
            dt_bias: dt_bias[head],
            a: a[head],
            d: d[head],
            steps,
            head,
            slots,
            out,
        });
    }
}

/// All steps of one head.
struct Advance<'a> {
    shape: &'a StateSpaceShape,
    input: &'a StateSpaceInput<'a, Cpu>,
    dt_bias: f32,
    a: f32,
    d: f32,
    steps: &'a [Step],
    head: usize,
    /// `(state_dim, head_dim)` per slot.
    slots: ColumnsMut<'a>,
    /// `(head_dim)` per row.
    out: ColumnsMut<'a>,
}

impl Kernel for Advance<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let StateSpaceShape {
            n_head,
            head_dim,
            n_group,
            state_dim,
        } = *self.shape;
        let len = self.shape.state_len();
        let at_b = n_head * head_dim + self.shape.group(self.head) * state_dim;
        for step in self.steps {
            let mixed = &self.input.mixed[step.row * self.shape.n_channel()..];
            let dt = self.input.dt[step.row * n_head + self.head];
            let delta = softplus(dt + self.dt_bias);
            let token = Token {
                x: &mixed[self.head * head_dim..][..head_dim],
                b: &mixed[at_b..][..state_dim],
                c: &mixed[at_b + n_group * state_dim..][..state_dim],
                delta,
                decay: exp(delta * self.a),
                d: self.d,
            };
            let out = self.out.row(step.row, 0..head_dim);
            token.advance(simd, step, &mut self.slots, len, out);
        }
    }
}

/// One step of one head.
struct Token<'a> {
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    /// Time step.
    delta: f32,
    /// Decay of the state.
    decay: f32,
    d: f32,
}

impl Recurrence for Token<'_> {
    #[inline(always)]
    fn dim(&self) -> usize {
        self.x.len()
    }

    #[inline(always)]
    fn advance_columns<S: Simd, const N: usize>(
        &self,
        simd: S,
        columns: &StateColumns,
        old: Option<&[f32]>,
        new: &mut [f32],
        out: &mut [f32],
    ) {
        let dim = self.dim();
        let chunk = |row, n| columns.chunk(row, n);
        let zero = simd.lanes(|_| simd.splat(0.0));
        let (delta, decay) = (simd.splat(self.delta), simd.splat(self.decay));
        let mut x = [zero; N];
        for (n, x) in x.iter_mut().enumerate() {
            *x = simd.load_partial(&self.x[chunk(0, n)]);
        }
        let mut sums = [zero; N];
        for (i, (&b, &c)) in self.b.iter().zip(self.c).enumerate() {
            let (b, c) = (simd.splat(b), simd.splat(c));
            for (n, sum) in sums.iter_mut().enumerate() {
                let row = simd.load_partial(&old.unwrap_or(new)[chunk(i * dim, n)]);
                let row = simd.scale_add(b, simd.scale(delta, x[n]), simd.scale(decay, row));
                simd.store_partial(row, &mut new[chunk(i * dim, n)]);
                *sum = simd.scale_add(c, row, *sum);
            }
        }
        let d = simd.splat(self.d);
        for (n, sum) in sums.into_iter().enumerate() {
            simd.store_partial(simd.scale_add(d, x[n], sum), &mut out[chunk(0, n)]);
        }
    }
}
