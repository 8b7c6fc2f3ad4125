//! Rotary position embedding.

use bytemuck::NoUninit;

use super::RopeOp;
use crate::backend::{Rope, RopeLayout};
use crate::cuda::device::{Address, Grid};
use crate::cuda::memory::Buffer;
use crate::cuda::queue::Touched;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count, kernel};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "rope",
    text: include_str!("rope.cu"),
    compiled_for: CompiledFor::Single,
};

impl RopeOp for Cuda {
    fn rope(&self, x: &mut Buffer, rope: &Rope, n_head: usize, positions: &[u32]) {
        let n_pair = rope.inv_freq.len();
        assert!(rope.first + 2 * n_pair <= rope.head_dim);
        let (pair_stride, partner) = match rope.layout {
            RopeLayout::Norm => (2, 1),
            RopeLayout::Neox => (1, count(n_pair)),
        };
        let inv_freq: Vec<u32> = rope.inv_freq.iter().map(|x| x.to_bits()).collect();
        let mut shared = self.shared();
        let args = RopeArguments {
            x: x.first_mut(positions.len() * n_head * rope.head_dim),
            positions: self.table(&mut shared, positions),
            inv_freq: self.table(&mut shared, &inv_freq),
            n_pair: count(n_pair),
            n_head: count(n_head),
            head_dim: count(rope.head_dim),
            pair_stride,
            partner,
            magnitude: rope.magnitude,
            n_row: count(positions.len()),
            first: count(rope.first),
        };
        let touched = Touched {
            reads: [args.x, Address::NONE],
            writes: [args.x, Address::NONE],
        };
        let grid = Grid::new([count(n_pair.div_ceil(32)), count(positions.len()), 1], 512);
        // SAFETY: the arguments are the struct of the kernel; the pairs lie within heads, the heads within the
        // rows.
        unsafe { self.launch_joined(kernel("rope", "rope"), grid, &args, touched) };
    }
}

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct RopeArguments {
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
    first: u32,
}
