//! Rotary position embedding.

use bytemuck::NoUninit;

use super::device::{Address, Grid};
use super::memory::Buffer;
use super::queue::Touched;
use super::{Cuda, count, kernel};
use crate::backend::RopeLayout;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Rope {
    x: Address,
    positions: Address,
    inv_freq: Address,
    n_pair: u32,
    n_head: u32,
    head_dim: u32,
    pair_stride: u32,
    partner: u32,
    magnitude: f32,
    n_row: u32,
    unused: u32,
}

/// [`Backend::rope`](crate::backend::Backend::rope).
pub(super) fn rope(
    cuda: &Cuda,
    x: &mut Buffer,
    rope: &crate::backend::Rope,
    n_head: usize,
    positions: &[u32],
) {
    let n_pair = rope.inv_freq.len();
    assert!(2 * n_pair <= rope.head_dim);
    let (pair_stride, partner) = match rope.layout {
        RopeLayout::Norm => (2, 1),
        RopeLayout::Neox => (1, count(n_pair)),
    };
    let inv_freq: Vec<u32> = rope.inv_freq.iter().map(|x| x.to_bits()).collect();
    let mut shared = cuda.shared();
    let args = Rope {
        x: x.first_mut(positions.len() * n_head * rope.head_dim),
        positions: cuda.table(&mut shared, positions),
        inv_freq: cuda.table(&mut shared, &inv_freq),
        n_pair: count(n_pair),
        n_head: count(n_head),
        head_dim: count(rope.head_dim),
        pair_stride,
        partner,
        magnitude: rope.magnitude,
        n_row: count(positions.len()),
        unused: 0,
    };
    let touched = Touched {
        reads: [args.x, Address::NONE],
        writes: [args.x, Address::NONE],
    };
    let grid = Grid::new([count(n_pair.div_ceil(32)), count(positions.len()), 1], 128);
    // SAFETY: the arguments are the struct of the kernel; the pairs lie within heads, the heads within the
    // rows.
    unsafe { cuda.launch_beside(kernel("rope", "rope"), grid, &args, touched) };
}
