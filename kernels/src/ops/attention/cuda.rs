//! Softmax attention over KV caches.

use std::mem::offset_of;

use bytemuck::NoUninit;

use super::AttentionOp;
use crate::backend::{AttentionInput, AttentionShape, KeyRows};
use crate::cuda::activation::QuantizedInput;
use crate::cuda::device::{Address, Grid, Kernel, Unit};
use crate::cuda::memory::Buffer;
use crate::cuda::source::{CompiledFor, Source};
use crate::cuda::{Cuda, count};

/// The kernels.
pub(crate) const SOURCE: Source = Source {
    name: "attention",
    text: include_str!("attention.cu"),
    compiled_for: CompiledFor::CachePairs,
};

impl AttentionOp for Cuda {
    fn attention(
        &self,
        shape: &AttentionShape,
        input: AttentionInput<'_, Self>,
        keys: &[KeyRows],
        out: &mut Buffer,
    ) {
        let AttentionShape {
            n_head,
            n_head_kv,
            head_dim,
            ..
        } = *shape;
        if !self.has_room("elements of a head", head_dim, MAX_HEAD_DIM) {
            return;
        }
        let end = keys.iter().map(|past| past.end).max().unwrap_or(0);
        for cache in [input.k, input.v] {
            let heads = (cache.shape.n_head, cache.shape.head_dim);
            assert!(heads == (n_head_kv, head_dim) && end <= cache.shape.n_rows);
        }
        let n_span = |past: &KeyRows| {
            let seen = shape.visible(past);
            (seen.end - past.start).div_ceil(SPAN) - (seen.start - past.start) / SPAN
        };
        let n_span = keys.iter().map(n_span).max().unwrap_or(0);
        if n_span == 0 {
            return;
        }
        let state_len = n_head * n_span * (2 + head_dim);
        let rows_at_once = (MAX_STATES / state_len).clamp(1, 1 << 15);
        let sinks = input
            .sinks
            .map_or(Address::NONE, |sinks| sinks.numbers(self));
        let mut shared = self.shared();
        let n_bytes = keys.len().min(rows_at_once) * state_len * size_of::<f32>();
        let states = self.scratch(&mut shared, n_bytes);
        let (n, dim) = (keys.len(), n_head * head_dim);
        let unit = Unit::of_caches("attention", input.k.shape.element, input.v.shape.element);
        for (i, keys) in keys.chunks(rows_at_once).enumerate() {
            let first = i * rows_at_once * dim;
            let pasts: Vec<u32> = keys
                .iter()
                .flat_map(|past| [past.start, shape.visible(past).start, past.end].map(count))
                .collect();
            let args = Attention {
                q: input.q.at(first, keys.len() * dim),
                k: input.k.memory.address(),
                v: input.v.memory.address(),
                sinks,
                pasts: self.table(&mut shared, &pasts),
                states,
                out: out.at_mut(first, keys.len() * dim),
                quantized: QuantizedInput::NONE,
                k_rows: count(input.k.shape.n_rows),
                v_rows: count(input.v.shape.n_rows),
                n_head: count(n_head),
                n_head_kv: count(n_head_kv),
                head_dim: count(head_dim),
                n_span: count(n_span),
                scale: shape.scale,
                unused: 0,
            };
            let launch = |name, n_span, threads| {
                let blocks = [n_head, keys.len(), n_span].map(count);
                let grid = Grid::new(blocks, threads);
                // SAFETY: the arguments are the struct of the kernels; the caches, whose types the unit is
                // for, hold the rows, and the scratch the states.
                unsafe { self.launch(Kernel { unit, name }, grid, &args) }
            };
            let one = launch("attend_span", n_span, SPAN as u32);
            let ticket = match n_span {
                1 => one,
                _ => launch("join_spans", 1, 128),
            };
            // With several passes, no single launch writes all rows, so none can quantize them.
            let ticket = ticket.filter(|_| n <= rows_at_once);
            let at = offset_of!(Attention, quantized);
            (shared.quants).record_producer(ticket, at, out, n * n_head, head_dim);
        }
    }
}

/// Keys per span, counted from the start of the sequence. A block of as many threads computes each span
/// independently.
const SPAN: usize = 512;

/// Maximum number of elements of a head.
const MAX_HEAD_DIM: usize = 1024;

/// Maximum number of floats in span states. If a batch needs more, its rows are processed in several
/// passes.
const MAX_STATES: usize = 1 << 25;

#[repr(C)]
#[derive(Clone, Copy, NoUninit)]
struct Attention {
    q: Address,
    k: Address,
    v: Address,
    sinks: Address,
    pasts: Address,
    states: Address,
    out: Address,
    quantized: QuantizedInput,
    k_rows: u32,
    v_rows: u32,
    n_head: u32,
    n_head_kv: u32,
    head_dim: u32,
    n_span: u32,
    scale: f32,
    unused: u32,
}
