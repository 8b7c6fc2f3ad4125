//! Matrix product of activations and a weight, or of each with the experts it chose.

use bytemuck::NoUninit;

use super::device::{Address, Grid, Kernel, Unit};
use super::memory::{Buffer, Routes, Weight};
use super::{Cuda, Shared, count, kernel};
use crate::backend::ExpertInput;

/// Columns that share a scale.
const LANES: usize = 32;

/// Rows of a weight that one block multiplies with.
const ROWS: usize = 8;

/// Most activation rows of one block.
const MAX_WIDTH: usize = 8;

/// Activation rows from which blocks are squares: a weight is read once for 64 of them instead of 8, by fewer blocks.
const MANY: usize = 33;

/// Rows of a weight, and activation rows, of such a block.
const SIDE: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Quantize {
    x: Address,
    codes: Address,
    scales: Address,
    n_tile: u32,
    unused: u32,
}

/// Bytes of what the kernels keep of 32 activations besides their codes.
const SCALE_BYTES: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Matmul {
    weight: Address,
    experts: Address,
    groups: Address,
    order: Address,
    x: Address,
    codes: Address,
    scales: Address,
    out: Address,
    n_rows: u32,
    n_cols: u32,
    row_bytes: u32,
    n: u32,
    n_shared: u32,
    unused: u32,
}

/// How many activation rows one block takes where there are `n`: no element depends on it.
pub(super) fn width(n: usize) -> usize {
    n.next_power_of_two().min(MAX_WIDTH)
}

/// What activations are to a product.
struct Input {
    x: Address,
    codes: Address,
    scales: Address,
}

/// [`Backend::matmul`](crate::backend::Backend::matmul).
pub(super) fn matmul(cuda: &Cuda, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
    if n == 0 || w.n_rows == 0 {
        return;
    }
    let mut shared = cuda.shared();
    let Input { x, codes, scales } = input(cuda, &mut shared, w, x.first(n * w.n_cols), n);
    let args = Matmul {
        weight: w.memory.address(),
        experts: Address::NONE,
        groups: Address::NONE,
        order: Address::NONE,
        x,
        codes,
        scales,
        out: out.first(n * w.n_rows),
        n_rows: count(w.n_rows),
        n_cols: count(w.n_cols),
        row_bytes: count(w.row_bytes),
        n: count(n),
        n_shared: 1,
        unused: 0,
    };
    let blocks = match w.is_coded() && n >= MANY {
        true => Blocks::Squares(n),
        false => Blocks::Narrow {
            width: width(n),
            n: n.div_ceil(width(n)),
        },
    };
    // SAFETY: the buffers hold `n` rows, `x` of inputs and `out` of outputs of the weight.
    unsafe { launch(cuda, w, blocks, &args) };
}

/// [`Backend::expert_matmul`](crate::backend::Backend::expert_matmul).
pub(super) fn expert_matmul(
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
    let alike = |e: &Weight| (e.dtype, e.n_rows, e.n_cols) == (w.dtype, w.n_rows, w.n_cols);
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
    let Input { x, codes, scales } = input(cuda, &mut shared, w, x.first(n_x * w.n_cols), n_x);
    let addresses = shared.kept.place(&addresses);
    let args = Matmul {
        weight: Address::NONE,
        experts: addresses,
        groups: routes.groups.address(),
        order: routes.order.address(),
        x,
        codes,
        scales,
        out: out.first(n_slot * w.n_rows),
        n_rows: count(w.n_rows),
        n_cols: count(w.n_cols),
        row_bytes: count(w.row_bytes),
        n: count(n_x),
        n_shared: count(n_shared),
        unused: 0,
    };
    let blocks = Blocks::Narrow {
        width: routes.width,
        n: routes.n_groups,
    };
    // SAFETY: the groups are of slots of these rows and of these experts, which are alike.
    unsafe { launch(cuda, w, blocks, &args) };
}

/// Makes codes of `n` rows if the weight wants them.
fn input(cuda: &Cuda, shared: &mut Shared, w: &Weight, x: Address, n: usize) -> Input {
    if !w.is_coded() {
        let (codes, scales) = (Address::NONE, Address::NONE);
        return Input { x, codes, scales };
    }
    let len = n * w.n_cols;
    let codes = cuda.scratch(shared, len + len / LANES * SCALE_BYTES);
    let args = Quantize {
        x,
        codes,
        scales: codes.offset(len),
        n_tile: count(len / LANES),
        unused: 0,
    };
    let grid = Grid::elements(len, 256);
    // SAFETY: the struct of the kernel; the scratch holds codes and scales of all tiles.
    unsafe { cuda.launch(kernel("activation", "quantize"), grid, &args) };
    Input {
        x,
        codes,
        scales: args.scales,
    }
}

/// How activation rows are shared out.
enum Blocks {
    /// So many times up to `width` of them.
    Narrow { width: usize, n: usize },
    /// That many, [`SIDE`] a block.
    Squares(usize),
}

/// # Safety
/// The addresses are good for what `args` says.
unsafe fn launch(cuda: &Cuda, w: &Weight, blocks: Blocks, args: &Matmul) {
    let unit = Unit::of_weight("matmul", w.dtype);
    let (name, n, rows) = match blocks {
        Blocks::Narrow { width: 1, n } => ("matmul_1", n, ROWS),
        Blocks::Narrow { width: 2, n } => ("matmul_2", n, ROWS),
        Blocks::Narrow { width: 4, n } => ("matmul_4", n, ROWS),
        Blocks::Narrow { n, .. } => ("matmul_8", n, ROWS),
        Blocks::Squares(n) => ("matmul_many", n.div_ceil(SIDE), SIDE),
    };
    let grid = Grid {
        blocks: [count(n), count(w.n_rows.div_ceil(rows)), 1],
        threads: 128,
    };
    // SAFETY: the struct of these kernels, and the caller's promise.
    unsafe { cuda.launch(Kernel { unit, name }, grid, args) };
}
