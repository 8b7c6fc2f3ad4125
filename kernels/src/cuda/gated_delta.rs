//! The gated delta rule.

use bytemuck::NoUninit;

use super::causal_conv::{reach, table};
use super::device::{Address, Grid};
use super::memory::Buffer;
use super::{Cuda, count, kernel};
use crate::backend::{DeltaInput, DeltaShape, HeadOrder, Step};

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
    n_gate: u32,
}

/// Maximum number of elements of a key head.
const MAX_KEY: usize = 1024;

/// Threads per block, one per column of a state.
const THREADS: usize = 64;

/// [`Backend::gated_delta_rule`](crate::backend::Backend::gated_delta_rule).
pub(super) fn gated_delta_rule(
    cuda: &Cuda,
    shape: &DeltaShape,
    input: &DeltaInput<'_, Cuda>,
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
        gate,
    } = *shape;
    if !cuda.has_room("elements of a key", head_dim_k, MAX_KEY) {
        return;
    }
    let n_gate = gate.len(head_dim_k);
    let (n_row, n_slot) = reach(steps);
    let divisor = match order {
        HeadOrder::Tiled => 1,
        HeadOrder::Grouped => n_head_v / n_head_k,
    };
    let (dt_bias, a) = (input.dt_bias.numbers(cuda), input.a.numbers(cuda));
    let mut shared = cuda.shared();
    let args = GatedDelta {
        q: input.q.first(n_row * n_head_k * head_dim_k),
        k: input.k.first(n_row * n_head_k * head_dim_k),
        v: input.v.first(n_row * n_head_v * head_dim_v),
        alpha: input.alpha.first(n_row * n_head_v * n_gate),
        beta: input.beta.first(n_row * n_head_v),
        dt_bias,
        a,
        steps: cuda.table(&mut shared, &table(steps)),
        state: state.first_mut(n_slot * n_head_v * head_dim_k * head_dim_v),
        out: out.first_mut(n_row * n_head_v * head_dim_v),
        n_step: count(steps.len()),
        n_head_k: count(n_head_k),
        n_head_v: count(n_head_v),
        head_dim_k: count(head_dim_k),
        head_dim_v: count(head_dim_v),
        divisor: count(divisor),
        scale: 1.0 / (head_dim_k as f32).sqrt(),
        n_gate: count(n_gate),
    };
    let grid = Grid::new(
        [count(head_dim_v.div_ceil(THREADS)), count(n_head_v), 1],
        THREADS as u32,
    );
    // SAFETY: the arguments are the struct of the kernel; the buffers hold the rows and slots of the steps.
    unsafe { cuda.launch(kernel("gated_delta", "gated_delta_rule"), grid, &args) };
}
