//! Mixture-of-experts layers.

use bytemuck::NoUninit;

use super::MoeOp;
use crate::backend::ExpertInput;
use crate::backend::{Gating, Routing};
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::{Buffer, Routes, Weight};
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count, kernel};
use crate::ops::matmul::cuda::expert_matmul;

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "moe",
    text: include_str!("moe.cu"),
    compiled_for: CompiledFor::Single,
};

impl MoeOp for Cuda {
    fn routes(&self, n: usize, n_used: usize) -> Routes {
        Routes::new(self, n, n_used)
    }

    fn route(
        &self,
        logits: &Buffer,
        bias: Option<&Weight>,
        routing: &Routing,
        n: usize,
        routes: &mut Routes,
    ) {
        let Routing {
            n_expert, n_used, ..
        } = *routing;
        assert!(n_used == routes.n_used && n_used <= n_expert && n * n_used <= routes.capacity);
        if !self.has_room("experts of a layer", n_expert, MAX_EXPERTS)
            || !self.has_room("groups of experts", routing.n_group, MAX_GROUPS)
        {
            return;
        }
        let bias = bias.map_or(Address::NONE, |bias| bias.numbers(self));
        route(self, logits, bias, Address::NONE, routing, n, routes);
    }

    fn route_to(
        &self,
        logits: &Buffer,
        experts: &[u32],
        routing: &Routing,
        n: usize,
        routes: &mut Routes,
    ) {
        let Routing {
            n_expert, n_used, ..
        } = *routing;
        assert!(experts.iter().all(|&expert| (expert as usize) < n_expert));
        assert!(n_used == routes.n_used && n * n_used <= routes.capacity);
        assert!(experts.len() == n * n_used);
        if !self.has_room("experts of a layer", n_expert, MAX_EXPERTS)
            || !self.has_room("groups of experts", routing.n_group, MAX_GROUPS)
        {
            return;
        }
        let mut shared = self.shared();
        let given = self.table(&mut shared, experts);
        route(self, logits, Address::NONE, given, routing, n, routes);
    }

    fn choose_all(&self, n: usize, routes: &mut Routes) {
        let len = n * routes.n_used;
        assert!(len <= routes.capacity && routes.n_used <= MAX_EXPERTS);
        let args = ChooseAll {
            experts: routes.experts.address(),
            weights: routes.weights.address(),
            n_used: count(routes.n_used),
            len: count(len),
        };
        let grid = Grid::elements(len, 256);
        // SAFETY: the arguments are the struct of the kernel; there is room for the choices of `n` rows.
        unsafe { self.launch(kernel("moe", "choose_all"), grid, &args) };
        routes.group(self, n, routes.n_used);
    }

    fn download_experts(&self, routes: &Routes, n: usize) -> Vec<u32> {
        let len = n * routes.n_used;
        assert!(len <= routes.capacity);
        let mut experts = vec![0; len];
        // While the lock is held, no operation uses the address of a table.
        let _shared = self.shared();
        let from = routes.experts.address();
        // SAFETY: the routes hold that many choices.
        let read = unsafe {
            self.queue
                .read(from, bytemuck::cast_slice_mut(&mut experts))
        };
        if read.is_none() {
            experts.fill(0);
        }
        experts
    }

    fn expert_matmul(
        &self,
        experts: &[Weight],
        routes: &Routes,
        x: &Buffer,
        input: ExpertInput,
        n: usize,
        out: &mut Buffer,
    ) {
        expert_matmul(self, experts, routes, x, input, n, out);
    }

    fn add_expert_bias(&self, x: &mut Buffer, bias: &Weight, routes: &Routes, n: usize) {
        assert!(bias.n_rows >= routes.n_expert, "a bias for each expert");
        let len = n * routes.n_used * bias.n_cols;
        let args = ExpertBias {
            x: x.first_mut(len),
            bias: bias.numbers(self),
            experts: routes.experts.address(),
            dim: bias.n_cols as u64,
            len: len as u64,
        };
        let grid = Grid::elements(len, 256);
        // SAFETY: the arguments are the struct of the kernel; a row for each slot.
        unsafe { self.launch(kernel("moe", "add_expert_bias"), grid, &args) };
    }

    fn scale_experts(
        &self,
        x: &mut Buffer,
        factors: &Weight,
        routes: &Routes,
        dim: usize,
        n: usize,
    ) {
        assert!(
            factors.n_cols >= routes.n_expert,
            "a factor for each expert"
        );
        let len = n * routes.n_used * dim;
        let args = ExpertScale {
            x: x.first_mut(len),
            factors: factors.numbers(self),
            experts: routes.experts.address(),
            dim: dim as u64,
            len: len as u64,
        };
        let grid = Grid::elements(len, 256);
        // SAFETY: the arguments are the struct of the kernel; a row for each slot.
        unsafe { self.launch(kernel("moe", "scale_experts"), grid, &args) };
    }

    fn combine_experts(&self, routes: &Routes, x: &Buffer, dim: usize, n: usize, out: &mut Buffer) {
        let args = Combine {
            x: x.first(n * routes.n_used * dim),
            weights: routes.weights.address(),
            out: out.first_mut(n * dim),
            dim: dim as u64,
            len: (n * dim) as u64,
            n_used: count(routes.n_used),
            unused: 0,
        };
        let grid = Grid::elements(n * dim, 256);
        // SAFETY: the arguments are the struct of the kernel; a row for each slot, and one for each sum.
        unsafe { self.launch(kernel("moe", "combine_experts"), grid, &args) };
    }
}

/// Launches the choice of experts, or of the weights of the given ones.
fn route(
    cuda: &Cuda,
    logits: &Buffer,
    bias: Address,
    given: Address,
    routing: &Routing,
    n: usize,
    routes: &mut Routes,
) {
    let Routing {
        n_expert, n_used, ..
    } = *routing;
    let args = Route {
        logits: logits.first(n * n_expert),
        bias,
        given,
        experts: routes.experts.address(),
        weights: routes.weights.address(),
        n_expert: count(n_expert),
        n_used: count(n_used),
        n_group: count(routing.n_group),
        n_group_used: count(routing.n_group_used),
        gating: match routing.gating {
            Gating::Sigmoid => 0,
            Gating::Softmax => 1,
            Gating::SqrtSoftplus => 2,
        },
        is_normalised: u32::from(routing.normalised),
        scale: routing.scale,
        unused: 0,
    };
    let grid = Grid::new([count(n), 1, 1], 32);
    // SAFETY: the arguments are the struct of the kernel; logits and choices of `n` rows.
    unsafe { cuda.launch(kernel("moe", "route"), grid, &args) };
    routes.group(cuda, n, n_expert);
}

/// Maximum number of experts of a layer, and of groups of experts.
const MAX_EXPERTS: usize = 2048;
const MAX_GROUPS: usize = 128;

/// Bytes per group of slots.
const GROUP_BYTES: usize = 12;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Route {
    logits: Address,
    bias: Address,
    given: Address,
    experts: Address,
    weights: Address,
    n_expert: u32,
    n_used: u32,
    n_group: u32,
    n_group_used: u32,
    gating: u32,
    is_normalised: u32,
    scale: f32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct ChooseAll {
    experts: Address,
    weights: Address,
    n_used: u32,
    len: u32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct GroupSlots {
    experts: Address,
    order: Address,
    groups: Address,
    n_slot: u32,
    n_expert: u32,
    width: u32,
    capacity: u32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Combine {
    x: Address,
    weights: Address,
    out: Address,
    dim: u64,
    len: u64,
    n_used: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct ExpertBias {
    x: Address,
    bias: Address,
    experts: Address,
    dim: u64,
    len: u64,
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct ExpertScale {
    x: Address,
    factors: Address,
    experts: Address,
    dim: u64,
    len: u64,
}

impl Routes {
    /// Allocates the choice of `n` rows.
    pub(crate) fn new(cuda: &Cuda, n: usize, n_used: usize) -> Routes {
        let n_slot = n * n_used;
        Routes {
            n_used,
            n_expert: 0,
            capacity: n_slot,
            experts: cuda.filled(0, n_slot),
            weights: cuda.filled(f32::NAN.to_bits(), n_slot),
            order: cuda.filled(0, n_slot),
            groups: cuda.filled(0, n_slot * GROUP_BYTES / size_of::<u32>()),
            width: 1,
            n_groups: 0,
        }
    }

    /// Groups slots with the same expert, after `n` rows have chosen.
    fn group(&mut self, cuda: &Cuda, n: usize, n_expert: usize) {
        let n_slot = n * self.n_used;
        // A row chooses an expert at most once, so an expert has at most one slot per row.
        self.width = crate::ops::matmul::cuda::width(n);
        // Every expert has at most one group that is not full.
        self.n_groups = n_slot.min(n_slot / self.width + n_expert);
        self.n_expert = n_expert;
        let args = GroupSlots {
            experts: self.experts.address(),
            order: self.order.address(),
            groups: self.groups.address(),
            n_slot: count(n_slot),
            n_expert: count(n_expert),
            width: count(self.width),
            capacity: count(self.n_groups),
        };
        let grid = Grid::new([1, 1, 1], 256);
        // SAFETY: the arguments are the struct of the kernel; there is room for a group of each slot.
        unsafe { cuda.launch(kernel("moe", "group_slots"), grid, &args) };
    }
}
