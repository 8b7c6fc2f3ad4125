//! Matrix product of activations and a weight, or of each with the experts it chose.

use bytemuck::NoUninit;

use super::activation::Coding;
use super::device::{Address, Grid, Kernel, Unit};
use super::memory::{Buffer, Routes, Weight};
use super::queue::Touched;
use super::{Cuda, Shared, count};
use crate::backend::ExpertInput;

/// Most activation rows of a block that shares them out by rows of the weight.
const MAX_WIDTH: usize = 8;

/// Activation rows from which blocks are squares: a weight is read once for 64 of them instead of 8, by fewer blocks.
const MANY: usize = 33;

/// Rows of a weight, and activation rows, of such a block.
const SIDE: usize = 64;

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

/// [`Backend::matmul`](crate::backend::Backend::matmul).
pub(super) fn matmul(cuda: &Cuda, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
    if n == 0 || w.n_rows == 0 {
        return;
    }
    let mut shared = cuda.shared();
    let coding = codes(cuda, &mut shared, w, x, n);
    let args = Matmul {
        weight: w.memory.address(),
        experts: Address::NONE,
        groups: Address::NONE,
        order: Address::NONE,
        x: x.first(n * w.n_cols),
        codes: coding.codes,
        scales: coding.scales,
        out: out.first_mut(n * w.n_rows),
        n_rows: count(w.n_rows),
        n_cols: count(w.n_cols),
        row_bytes: count(w.row_bytes),
        n: count(n),
        n_shared: 1,
        unused: 0,
    };
    let blocks = match w.is_coded() && n >= MANY {
        true => Blocks::Squares(n),
        false => Blocks::Even(n),
    };
    // SAFETY: the buffers hold `n` rows, `x` of inputs and `out` of outputs of the weight.
    unsafe { launch(cuda, &mut shared, w, blocks, &args) };
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
    let coding = codes(cuda, &mut shared, w, x, n_x);
    let addresses = shared.kept.place(&addresses);
    let args = Matmul {
        weight: Address::NONE,
        experts: addresses,
        groups: routes.groups.address(),
        order: routes.order.address(),
        x: x.first(n_x * w.n_cols),
        codes: coding.codes,
        scales: coding.scales,
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
    // SAFETY: the groups are of slots of these rows and of these experts, which are alike.
    unsafe { launch(cuda, &mut shared, w, blocks, &args) };
}

/// Codes of `n` rows, if the weight wants them.
fn codes(cuda: &Cuda, shared: &mut Shared, w: &Weight, x: &Buffer, n: usize) -> Coding {
    match w.is_coded() {
        true => shared.codes.of(cuda, x, n, w.n_cols),
        false => Coding::NONE,
    }
}

/// How activation rows are shared out.
enum Blocks {
    /// So many, as evenly as may be.
    Even(usize),
    /// So many groups of up to `width`.
    Groups { width: usize, n: usize },
    /// So many, in squares with as many rows of the weight.
    Squares(usize),
}

/// # Safety
/// The addresses are good for what `args` says.
unsafe fn launch(cuda: &Cuda, shared: &mut Shared, w: &Weight, blocks: Blocks, args: &Matmul) {
    let (width, n) = match blocks {
        Blocks::Even(n) => (width(n), n.div_ceil(width(n))),
        Blocks::Groups { width, n } => (width, n),
        Blocks::Squares(n) => (SIDE, n.div_ceil(SIDE)),
    };
    let file = match w.is_coded() {
        true => "matmul_codes",
        false => "matmul_numbers",
    };
    // Rows of the weight, and threads, of a block.
    let (name, rows, threads) = match (w.is_coded(), width) {
        (true, 1) => ("multiply_1", 32, 256),
        (true, SIDE) => ("multiply_many", SIDE, 256),
        (true, _) => ("multiply_8", 32, 256),
        (false, 1) => ("multiply_1", 8, 128),
        (false, 2) => ("multiply_2", 8, 128),
        (false, 4) => ("multiply_4", 8, 128),
        (false, _) => ("multiply_8", 8, 128),
    };
    let unit = Unit::of_weight(file, w.dtype);
    let blocks = [count(n), count(w.n_rows.div_ceil(rows)), 1];
    let grid = Grid::new(blocks, threads);
    let touched = Touched {
        reads: [args.x, args.codes],
        writes: [args.out, Address::NONE],
    };
    // SAFETY: the struct of these kernels, and the caller's promise.
    let ticket = unsafe { cuda.launch_beside(Kernel { unit, name }, grid, args, touched) };
    if w.is_coded() {
        shared.codes.used(ticket);
    }
}
