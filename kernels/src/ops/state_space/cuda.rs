//! The state space recurrence of Mamba-2.

use bytemuck::NoUninit;

use super::StateSpaceOp;
use crate::backend::{StateSpaceInput, StateSpaceShape, Step};
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::Buffer;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::steps::{reach, table};
use crate::cuda::{Cuda, count, kernel};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "state_space",
    text: include_str!("state_space.cu"),
    compiled_for: CompiledFor::Single,
};

impl StateSpaceOp for Cuda {
    fn state_space(
        &self,
        shape: &StateSpaceShape,
        input: StateSpaceInput<'_, Self>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let StateSpaceShape {
            n_head,
            head_dim,
            n_group,
            state_dim,
        } = *shape;
        let (n_row, n_slot) = reach(steps);
        let (dt_bias, a, d) = (
            input.dt_bias.numbers(self),
            input.a.numbers(self),
            input.d.numbers(self),
        );
        let mut shared = self.shared();
        let args = StateSpace {
            mixed: input.mixed.first(n_row * shape.n_channel()),
            dt: input.dt.first(n_row * n_head),
            dt_bias,
            a,
            d,
            steps: self.table(&mut shared, &table(steps)),
            state: state.first_mut(n_slot * n_head * shape.state_len()),
            out: out.first_mut(n_row * n_head * head_dim),
            n_step: count(steps.len()),
            n_head: count(n_head),
            head_dim: count(head_dim),
            n_group: count(n_group),
            state_dim: count(state_dim),
            unused: 0,
        };
        let grid = Grid::new(
            [count(head_dim.div_ceil(THREADS)), count(n_head), 1],
            THREADS as u32,
        );
        // SAFETY: the arguments are the struct of the kernel; the buffers hold the rows and slots of the steps.
        unsafe { self.launch(kernel("state_space", "state_space"), grid, &args) };
    }
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct StateSpace {
    mixed: Address,
    dt: Address,
    dt_bias: Address,
    a: Address,
    d: Address,
    steps: Address,
    state: Address,
    out: Address,
    n_step: u32,
    n_head: u32,
    head_dim: u32,
    n_group: u32,
    state_dim: u32,
    unused: u32,
}

/// Threads per block, one per column of a state.
const THREADS: usize = 64;
