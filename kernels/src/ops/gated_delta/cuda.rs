//! The gated delta rule.

use bytemuck::NoUninit;

use super::GatedDeltaOp;
use crate::backend::{DeltaInput, DeltaShape, HeadOrder, Step};
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::Buffer;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::steps::{reach, table};
use crate::cuda::{Cuda, count, kernel};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "gated_delta",
    text: include_str!("gated_delta.cu"),
    compiled_for: CompiledFor::Single,
};

impl GatedDeltaOp for Cuda {
    fn gated_delta_rule(
        &self,
        shape: &DeltaShape,
        input: DeltaInput<'_, Self>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let DeltaShape {
            n_head_k,
            n_head_v,
            head_dim_k,
            head_dim_v,
            order,
        } = *shape;
        let (n_row, n_slot) = reach(steps);
        let divisor = match order {
            HeadOrder::Tiled => 1,
            HeadOrder::Grouped => n_head_v / n_head_k,
        };
        let (dt_bias, a) = (input.dt_bias.numbers(self), input.a.numbers(self));
        let mut shared = self.shared();
        let args = GatedDelta {
            q: input.q.first(n_row * n_head_k * head_dim_k),
            k: input.k.first(n_row * n_head_k * head_dim_k),
            v: input.v.first(n_row * n_head_v * head_dim_v),
            alpha: input.alpha.first(n_row * n_head_v),
            beta: input.beta.first(n_row * n_head_v),
            dt_bias,
            a,
            steps: self.table(&mut shared, &table(steps)),
            state: state.first_mut(n_slot * n_head_v * head_dim_k * head_dim_v),
            out: out.first_mut(n_row * n_head_v * head_dim_v),
            n_step: count(steps.len()),
            n_head_k: count(n_head_k),
            n_head_v: count(n_head_v),
            head_dim_k: count(head_dim_k),
            head_dim_v: count(head_dim_v),
            divisor: count(divisor),
            scale: 1.0 / (head_dim_k as f32).sqrt(),
            unused: 0,
        };
        let grid = Grid::new(
            [count(head_dim_v.div_ceil(THREADS)), count(n_head_v), 1],
            THREADS as u32,
        );
        // SAFETY: the arguments are the struct of the kernel; the buffers hold the rows and slots of the steps.
        unsafe { self.launch(kernel("gated_delta", "gated_delta_rule"), grid, &args) };
    }
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct GatedDelta {
    q: Address,
    k: Address,
    v: Address,
    alpha: Address,
    beta: Address,
    dt_bias: Address,
    a: Address,
    steps: Address,
    state: Address,
    out: Address,
    n_step: u32,
    n_head_k: u32,
    n_head_v: u32,
    head_dim_k: u32,
    head_dim_v: u32,
    divisor: u32,
    scale: f32,
    unused: u32,
}

/// Threads per block, one per column of a state.
const THREADS: usize = 64;
