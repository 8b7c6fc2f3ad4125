//! [`Follower`]: a draft that is evaluated on the hidden states of its target.

use std::ops::Range;
use std::sync::Arc;

use kernels::backend::Backend;
use runner::batch::{Batch, Outputs};
use runner::context::Context;
use runner::loaded_models::ObservedDraft;
use runner::model::Fusion;
use runner::speculate::DraftKind;
use schemas::arch::BlockDraft;

/// Rows whose logits are computed together.
pub(super) const N_OUTPUTS: usize = 64;

/// A draft context that evaluates the chunks of its target's passes.
pub(super) struct Follower<B: Backend> {
    context: Context<B>,
    fusion: Option<Arc<Fusion<B>>>,
    block: Option<BlockDraft>,
    /// Position in the draft of a token minus its position in the text: the first token that the draft
    /// evaluates is the second one of the text.
    first: u32,
    /// Heads whose own output head is evaluated.
    with_logits: Vec<bool>,
    /// Elements of a state of the target.
    width: usize,
    /// States of the rows of a pass: (n_batch, width).
    gathered: B::Buffer,
    /// States before or after a norm: (n_batch, width).
    normed: B::Buffer,
    /// Fused states: (n_batch, n_embd).
    fused: B::Buffer,
}

/// The chunks of a target pass.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    /// Tokens of each chunk, one chunk per sequence.
    pub(super) chunks: &'a [Vec<u32>],
    /// First position of the pass in each chunk.
    pub(super) start: usize,
    /// End of these positions.
    pub(super) end: usize,
}

impl Pass<'_> {
    /// Returns the batch of the target.
    pub(super) fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        for (seq, chunk) in self.chunks.iter().enumerate() {
            let tokens = &chunk[self.start..self.end];
            batch.push(seq, self.start as u32, tokens, Outputs::None);
        }
        batch
    }

    fn len(&self) -> usize {
        self.end - self.start
    }
}

impl<B: Backend> Follower<B> {
    /// Creates the follower; `has_logits` tells for a head whether its output head is observed.
    pub(super) fn new(draft: ObservedDraft<B>, has_logits: impl Fn(u32) -> bool) -> Follower<B> {
        let ObservedDraft {
            kind,
            context,
            fusion,
        } = draft;
        let model = context.model();
        let n_embd = model.hparams.n_embd as usize;
        let features = model.hparams.features.as_ref();
        let width = features.map_or(n_embd, |features| features.width() as usize);
        let n_batch = context.config().n_batch;
        let backend = context.backend();
        let blocks = model.blocks.start..model.blocks.start + model.n_heads() as u32;
        Follower {
            block: model.block(),
            first: u32::from(kind == DraftKind::Mtp),
            with_logits: blocks.map(has_logits).collect(),
            width,
            gathered: backend.scratch(n_batch * width),
            normed: backend.scratch(n_batch * width.max(n_embd)),
            fused: backend.scratch(n_batch * n_embd),
            fusion,
            context,
        }
    }

    /// Evaluates the tokens of a target pass, whose hidden states `target` still has.
    pub(super) fn follow(&mut self, pass: Pass<'_>, target: &Context<B>) {
        let states = match self.fusion {
            Some(_) => target.features(),
            None => target.carried(),
        };
        match self.block {
            Some(block) => self.evaluate_blocks(pass, states, block),
            None => self.evaluate(pass, states),
        }
    }

    /// Evaluates each token with the state of the token before it; the last state of a chunk has no next token.
    fn evaluate(&mut self, pass: Pass<'_>, states: &B::Buffer) {
        let mut batch = Batch::default();
        let start = pass.start as u32 + self.first;
        for (seq, chunk) in pass.chunks.iter().enumerate() {
            let end = pass.end.min(chunk.len() - 1);
            let tokens = chunk.get(pass.start + 1..=end).unwrap_or_default();
            let backend = self.context.backend();
            let (from, to) = (seq * pass.len(), batch.len());
            backend.copy_rows(
                states,
                from,
                &mut self.gathered,
                to,
                self.width,
                tokens.len(),
            );
            batch.push(seq, start, tokens, Outputs::None);
        }
        if batch.is_empty() {
            return;
        }
        if let Some(fusion) = &self.fusion {
            let backend = self.context.backend();
            let (normed, fused) = (&mut self.normed, &mut self.fused);
            fusion.forward(backend, &self.gathered, batch.len(), normed, fused);
        }
        let input = match self.fusion {
            Some(_) => &self.fused,
            None => &self.gathered,
        };
        for (head, with_logits) in self.with_logits.iter().enumerate() {
            for seq in 0..pass.chunks.len() {
                match pass.start {
                    0 => self.context.restart(seq, start),
                    _ => _ = self.context.truncate(seq, start),
                }
            }
            self.context.select_head(head);
            self.context.run(&batch, Some(input));
            if *with_logits {
                compute_all_logits(&mut self.context, 0..batch.len());
            }
        }
        self.context.select_head(0);
    }

    /// Stores the target's features a block at a time, and evaluates the block that would be drafted there. Chunks
    /// follow each other, and blocks start at multiples of their size, so the order of rows does not depend on
    /// the size of a pass.
    fn evaluate_blocks(&mut self, pass: Pass<'_>, states: &B::Buffer, block: BlockDraft) {
        let (n, size) = (pass.len(), block.size as usize);
        let n_embd = self.context.model().hparams.n_embd as usize;
        if let Some(fusion) = &self.fusion {
            let backend = self.context.backend();
            let (normed, fused) = (&mut self.normed, &mut self.fused);
            fusion.forward(backend, states, pass.chunks.len() * n, normed, fused);
        }
        let masks = vec![block.mask_token; size - 1];
        for (seq, chunk) in pass.chunks.iter().enumerate() {
            if pass.start == 0 {
                self.context.restart(seq, 0);
            }
            let mut start = pass.start;
            while start < pass.end {
                let end = pass.end.min((start / size + 1) * size);
                let (backend, from) = (self.context.backend(), seq * n + start - pass.start);
                backend.copy_rows(&self.fused, from, &mut self.normed, 0, n_embd, end - start);
                let mut batch = Batch::default();
                batch.push(seq, start as u32, &chunk[start..end], Outputs::None);
                self.context.inject(&batch, &self.normed);
                start = end;
                let anchor = chunk.get(end).filter(|_| end.is_multiple_of(size));
                let Some(&anchor) = anchor else { continue };
                batch.clear();
                batch.push(seq, end as u32, &[anchor], Outputs::None);
                batch.push(seq, end as u32 + 1, &masks, Outputs::None);
                self.context.run(&batch, None);
                if self.with_logits[0] {
                    compute_all_logits(&mut self.context, 0..batch.len());
                }
                self.context.truncate(seq, end as u32);
            }
        }
    }
}

/// Computes the logits of some rows of the last pass for the observer.
fn compute_all_logits<B: Backend>(context: &mut Context<B>, rows: Range<usize>) {
    let rows: Vec<usize> = rows.collect();
    for rows in rows.chunks(N_OUTPUTS) {
        context.compute_logits(rows);
    }
}
