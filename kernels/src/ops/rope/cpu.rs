//! Rotary position embedding.

use super::RopeOp;
use crate::backend::{Rope, RopeLayout};
use crate::cpu::Cpu;
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::math::sin_cos;

impl RopeOp for Cpu {
    fn rope(&self, x: &mut Buffer, rope: &Rope, n_head: usize, positions: &[u32]) {
        let x = &mut x[..positions.len() * n_head * rope.head_dim];
        let n_pair = rope.inv_freq.len();
        assert!(2 * n_pair <= rope.head_dim);
        let arena = Arena::new();
        let rotation = arena.filled((0.0, 0.0), n_pair);
        for (row, &position) in x.chunks_exact_mut(n_head * rope.head_dim).zip(positions) {
            for (rotation, &inv_freq) in rotation.iter_mut().zip(&rope.inv_freq) {
                let (sin, cos) = sin_cos(position as f32 * inv_freq);
                *rotation = (rope.magnitude * sin, rope.magnitude * cos);
            }
            for head in row.chunks_exact_mut(rope.head_dim) {
                let head = &mut head[..2 * n_pair];
                match rope.layout {
                    RopeLayout::Norm => {
                        for ([a, b], &turn) in head.as_chunks_mut().0.iter_mut().zip(&*rotation) {
                            rotate(a, b, turn);
                        }
                    }
                    RopeLayout::Neox => {
                        let (first, second) = head.split_at_mut(n_pair);
                        for ((a, b), &turn) in first.iter_mut().zip(second).zip(&*rotation) {
                            rotate(a, b, turn);
                        }
                    }
                }
            }
        }
    }
}

fn rotate(a: &mut f32, b: &mut f32, (sin, cos): (f32, f32)) {
    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
}
