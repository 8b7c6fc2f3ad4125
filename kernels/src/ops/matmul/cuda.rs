//! Matrix products of activations with a weight, or of each row with its experts.

use bytemuck::NoUninit;

use super::MatmulOp;
use crate::backend::ExpertInput;
use crate::cuda::activation::QuantizedInput;
use crate::cuda::device::{Address, Grid, Kernel, Unit};
use crate::cuda::memory::{Buffer, Routes, Weight};
use crate::cuda::queue::Touched;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, Shared, count};

/// The kernels for float weights.
pub(crate) const FLOAT_SOURCE: Source = Source {
    name: "matmul_float",
    text: include_str!("matmul_float.cu"),
    compiled_for: CompiledFor::FloatWeights,
};

/// The kernels for quantized weights.
pub(crate) const QUANTS_SOURCE: Source = Source {
    name: "matmul_quants",
    text: include_str!("matmul_quants.cu"),
    compiled_for: CompiledFor::QuantizedWeights,
};

impl MatmulOp for Cuda {
    fn matmul(&self, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
        if n == 0 || w.n_rows == 0 {
            return;
        }
        let mut shared = self.shared();
        let input = quants(self, &mut shared, w, x, n);
        let args = Matmul {
            weight: w.memory.address(),
            experts: Address::NONE,
            groups: Address::NONE,
            order: Address::NONE,
            x: x.first(n * w.n_cols),
            quants: input.quants,
            scales: input.scales,
            out: out.first_mut(n * w.n_rows),
            n_rows: count(w.n_rows),
            n_cols: count(w.n_cols),
            row_bytes: count(w.row_bytes),
            n: count(n),
            n_shared: 1,
            unused: 0,
        };
        let blocks = if w.is_quantized() && n >= MANY {
            Blocks::Squares(n)
        } else {
            Blocks::Even(n)
        };
        // SAFETY: the buffers hold `n` rows, `x` of inputs and `out` of outputs of the weight.
        unsafe { launch(self, &mut shared, w, blocks, &args) };
    }
}

/// Maximum number of activation rows per block in the kernels for few rows.
const MAX_WIDTH: usize = 8;

/// Minimum number of activation rows for square tiles: a weight is then read once per 64 rows instead of 8,
/// by fewer blocks.
const MANY: usize = 33;

/// Weight rows and activation rows of a square tile.
const SIDE: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Matmul {
    weight: Address,
    experts: Address,
    groups: Address,
    order: Address,
    x: Address,
    quants: Address,
    scales: Address,
    out: Address,
    n_rows: u32,
    n_cols: u32,
    row_bytes: u32,
    n: u32,
    n_shared: u32,
    unused: u32,
}

/// Returns the activation rows per block for `n` rows. Results do not depend on it.
pub(crate) fn width(n: usize) -> usize {
    n.next_power_of_two().min(MAX_WIDTH)
}

/// [`MoeOp::expert_matmul`](crate::backend::MoeOp::expert_matmul).
pub(crate) fn expert_matmul(
    cuda: &Cuda,
    experts: &[Weight],
    routes: &Routes,
    x: &Buffer,
    kind: ExpertInput,
    n: usize,
    out: &mut Buffer,
) {
    let w = &experts[0];
    if n == 0 || w.n_rows == 0 {
        return;
    }
    let alike = |e: &Weight| (e.dtype(), e.n_rows, e.n_cols) == (w.dtype(), w.n_rows, w.n_cols);
    assert!(
        experts.iter().all(alike) && experts.len() >= routes.n_expert,
        "experts of one type and shape, as many as there are to choose from"
    );
    let n_slot = n * routes.n_used;
    let (n_x, n_shared) = match kind {
        ExpertInput::PerRow => (n, routes.n_used),
        ExpertInput::PerExpert => (n_slot, 1),
    };
    let addresses: Vec<u32> = experts
        .iter()
        .flat_map(|expert| {
            let Address(address) = expert.memory.address();
            [address as u32, (address >> 32) as u32]
        })
        .collect();
    let mut shared = cuda.shared();
    let input = quants(cuda, &mut shared, w, x, n_x);
    let addresses = shared.arrays.place(&addresses);
    let args = Matmul {
        weight: Address::NONE,
        experts: addresses,
        groups: routes.groups.address(),
        order: routes.order.address(),
        x: x.first(n_x * w.n_cols),
        quants: input.quants,
        scales: input.scales,
        out: out.first_mut(n_slot * w.n_rows),
        n_rows: count(w.n_rows),
        n_cols: count(w.n_cols),
        row_bytes: count(w.row_bytes),
        n: count(n_x),
        n_shared: count(n_shared),
        unused: 0,
    };
    let blocks = Blocks::Groups {
        width: routes.width,
        n: routes.n_groups,
    };
    // SAFETY: the groups contain slots of these rows and experts, and all experts have the same shape.
    unsafe { launch(cuda, &mut shared, w, blocks, &args) };
}

/// Returns the quantized activations of `n` rows, if the weight is quantized.
fn quants(cuda: &Cuda, shared: &mut Shared, w: &Weight, x: &Buffer, n: usize) -> QuantizedInput {
    if w.is_quantized() {
        shared.quants.of(cuda, x, n, w.n_cols)
    } else {
        QuantizedInput::NONE
    }
}

/// Partition of the activation rows into blocks.
enum Blocks {
    /// `n` rows, as evenly as possible.
    Even(usize),
    /// `n` groups of up to `width` slots.
    Groups { width: usize, n: usize },
    /// `n` rows, in square tiles.
    Squares(usize),
}

/// # Safety
/// The addresses are valid for the accesses that `args` describes.
unsafe fn launch(cuda: &Cuda, shared: &mut Shared, w: &Weight, blocks: Blocks, args: &Matmul) {
    let (width, n) = match blocks {
        Blocks::Even(n) => (width(n), n.div_ceil(width(n))),
        Blocks::Groups { width, n } => (width, n),
        Blocks::Squares(n) => (SIDE, n.div_ceil(SIDE)),
    };
    let file = if w.is_quantized() {
        "matmul_quants"
    } else {
        "matmul_float"
    };
    // Weight rows and threads per block.
    let (name, rows, threads) = match (w.is_quantized(), width) {
        (true, 1) => ("multiply_1", 32, 256),
        (true, SIDE) => ("multiply_many", SIDE, 256),
        (true, _) => ("multiply_8", 32, 256),
        (false, 1) => ("multiply_1", 8, 128),
        (false, 2) => ("multiply_2", 8, 128),
        (false, 4) => ("multiply_4", 8, 128),
        (false, _) => ("multiply_8", 8, 128),
    };
    let unit = Unit::of_weight(file, w.dtype());
    let blocks = [count(n), count(w.n_rows.div_ceil(rows)), 1];
    let grid = Grid::new(blocks, threads);
    let touched = Touched {
        reads: [args.x, args.quants],
        writes: [args.out, Address::NONE],
    };
    // SAFETY: the arguments are the struct of these kernels, and the caller's promise.
    let ticket = unsafe { cuda.launch_joined(Kernel { unit, name }, grid, args, touched) };
    if w.is_quantized() {
        shared.quants.record_use(ticket);
    }
}
