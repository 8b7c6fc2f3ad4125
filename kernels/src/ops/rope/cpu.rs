//! Rotary position embedding.

use super::RopeOp;
use crate::backend::{Rope, RopeLayout};
use crate::cpu::arena::Arena;
use crate::cpu::buffer::Buffer;
use crate::cpu::math::sin_cos;
use crate::cpu::{Cpu, rows_per_task};
use crate::simd::{Kernel, Simd};

impl RopeOp for Cpu {
    fn rope(&self, x: &mut Buffer, rope: &Rope, n_head: usize, positions: &[u32]) {
        let row_len = n_head * rope.head_dim;
        let x = &mut x[..positions.len() * row_len];
        assert!(rope.first + 2 * rope.inv_freq.len() <= rope.head_dim);
        let work = row_len + SIN_COS_WORK * rope.inv_freq.len();
        let n_row = rows_per_task(work);
        let tasks = x.chunks_mut(n_row * row_len).zip(positions.chunks(n_row));
        self.run(positions.len() * work, tasks, |(x, positions)| Rotate {
            x,
            rope,
            row_len,
            positions,
        });
    }
}

/// Approximate cost of a sine with its cosine, in multiply-adds.
const SIN_COS_WORK: usize = 32;

/// Rotates the heads of some rows.
struct Rotate<'a> {
    x: &'a mut [f32],
    rope: &'a Rope,
    row_len: usize,
    positions: &'a [u32],
}

impl Kernel for Rotate<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let rope = self.rope;
        let n_pair = rope.inv_freq.len();
        let arena = Arena::new();
        let rotation = arena.filled((0.0, 0.0), n_pair);
        for (row, &position) in self.x.chunks_exact_mut(self.row_len).zip(self.positions) {
            for (rotation, &inv_freq) in rotation.iter_mut().zip(&rope.inv_freq) {
                let (sin, cos) = sin_cos(position as f32 * inv_freq);
                *rotation = (rope.magnitude * sin, rope.magnitude * cos);
            }
            for head in row.chunks_exact_mut(rope.head_dim) {
                let head = &mut head[rope.first..][..2 * n_pair];
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

#[inline(always)]
fn rotate(a: &mut f32, b: &mut f32, (sin, cos): (f32, f32)) {
    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
}
