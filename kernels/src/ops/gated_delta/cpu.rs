//! The gated delta rule.

use super::GatedDeltaOp;
use crate::backend::{DeltaInput, DeltaShape, Step};
use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::columns::ColumnsMut;
use crate::cpu::math::{exp, sigmoid, softplus};
use crate::cpu::recurrence::{Recurrence, StateColumns};
use crate::simd::{Kernel, Simd};

impl GatedDeltaOp for Cpu {
    fn gated_delta_rule(
        &self,
        shape: &DeltaShape,
        input: DeltaInput<'_, Self>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let input = &input;
        let DeltaShape {
            n_head_v,
            head_dim_k,
            head_dim_v,
            ..
        } = *shape;
        let (dt_bias, a) = (input.dt_bias.to_f32(), input.a.to_f32());
        let len = head_dim_k * head_dim_v;
        let work = 4 * steps.len() * n_head_v * len;
        // Value heads are independent: each task has one, in every slot and every row.
        let slots = ColumnsMut::split(state, n_head_v * len, len);
        let tasks = slots.zip(ColumnsMut::split(out, n_head_v * head_dim_v, head_dim_v));
        self.run(work, tasks.enumerate(), |(index, (slots, out))| Advance {
            shape,
            input,
            dt_bias: &dt_bias,
            a: &a,
            steps,
            index,
            slots,
            out,
        });
    }
}

/// All steps of one value head.
struct Advance<'a> {
    shape: &'a DeltaShape,
    input: &'a DeltaInput<'a, Cpu>,
    dt_bias: &'a [f32],
    a: &'a [f32],
    steps: &'a [Step],
    index: usize,
    /// `(head_dim_k, head_dim_v)` per slot.
    slots: ColumnsMut<'a>,
    /// `(head_dim_v)` per row.
    out: ColumnsMut<'a>,
}

impl Kernel for Advance<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let DeltaShape {
            n_head_k,
            n_head_v,
            head_dim_k,
            head_dim_v,
            ..
        } = *self.shape;
        let len = head_dim_k * head_dim_v;
        for step in self.steps {
            let at = step.row * n_head_v + self.index;
            let alpha = self.input.alpha[at] + self.dt_bias[self.index];
            let key_head = self.shape.key_head(self.index);
            let at_k = (step.row * n_head_k + key_head) * head_dim_k;
            let token = Token {
                q: &self.input.q[at_k..][..head_dim_k],
                k: &self.input.k[at_k..][..head_dim_k],
                v: &self.input.v[at * head_dim_v..][..head_dim_v],
                decay: exp(softplus(alpha) * self.a[self.index]),
                strength: sigmoid(self.input.beta[at]),
            };
            let out = self.out.row(step.row, 0..head_dim_v);
            token.advance(simd, step, &mut self.slots, len, out);
        }
    }
}

/// One step of one head.
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    /// Decay of the state.
    decay: f32,
    strength: f32,
}

impl Recurrence for Token<'_> {
    #[inline(always)]
    fn dim(&self) -> usize {
        self.v.len()
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
        let mut delta = [zero; N];
        let decay = simd.splat(self.decay);
        for (i, &k) in self.k.iter().enumerate() {
            let k = simd.splat(k);
            for (n, read) in delta.iter_mut().enumerate() {
                let row = simd.load_partial(&old.unwrap_or(new)[chunk(i * dim, n)]);
                *read = simd.scale_add(k, simd.scale(decay, row), *read);
            }
        }
        let strength = simd.splat(self.strength);
        for (n, delta) in delta.iter_mut().enumerate() {
            let v = simd.load_partial(&self.v[chunk(0, n)]);
            *delta = simd.lanes(|i| simd.mul(strength, simd.sub(v[i], delta[i])));
        }
        let mut sums = [zero; N];
        for (i, (&k, &q)) in self.k.iter().zip(self.q).enumerate() {
            let (k, q) = (simd.splat(k), simd.splat(q));
            for (n, sum) in sums.iter_mut().enumerate() {
                let row = simd.load_partial(&old.unwrap_or(new)[chunk(i * dim, n)]);
                let row = simd.scale_add(k, delta[n], simd.scale(decay, row));
                simd.store_partial(row, &mut new[chunk(i * dim, n)]);
                *sum = simd.scale_add(q, row, *sum);
            }
        }
        let scale = simd.splat(1.0 / (self.k.len() as f32).sqrt());
        for (n, sum) in sums.into_iter().enumerate() {
            simd.store_partial(simd.scale(scale, sum), &mut out[chunk(0, n)]);
        }
    }
}
