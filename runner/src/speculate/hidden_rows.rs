//! [`HiddenRows`]: the hidden states of a target pass that one draft reads.

use kernels::backend::Backend;

use super::TargetPass;

/// Rows of hidden states, one for each token of a target pass.
pub(super) struct HiddenRows<'a, B: Backend> {
    buffer: &'a B::Buffer,
    /// Elements of a row of the buffer.
    stride: usize,
    /// Parts of it that the draft reads, in its order.
    parts: Vec<Part>,
}

struct Part {
    offset: usize,
    width: usize,
}

impl<B: Backend> TargetPass<'_, B> {
    /// Returns the rows after the final norm, of `width` elements.
    pub(super) fn hidden_rows(&self, width: usize) -> HiddenRows<'_, B> {
        HiddenRows {
            buffer: self.hidden,
            stride: width,
            parts: vec![Part { offset: 0, width }],
        }
    }

    /// Returns the concatenated inputs of these layers, all of which are tapped; `width` is that of all of
    /// them together.
    pub(super) fn feature_rows(&self, layers: &[u32], width: usize) -> HiddenRows<'_, B> {
        let n_embd = width / layers.len();
        let mut parts: Vec<Part> = Vec::new();
        for layer in layers {
            let tap = self.taps.iter().position(|tap| tap == layer);
            let offset = n_embd * tap.expect("the target taps the layers of all drafts");
            match parts.last_mut() {
                Some(last) if last.offset + last.width == offset => last.width += n_embd,
                _ => parts.push(Part {
                    offset,
                    width: n_embd,
                }),
            }
        }
        HiddenRows {
            buffer: self.features,
            stride: n_embd * self.taps.len(),
            parts,
        }
    }
}

impl<B: Backend> HiddenRows<'_, B> {
    /// Copies `n` rows from row `from` on to `out`, from its row `to` on.
    pub(super) fn copy(&self, backend: &B, from: usize, out: &mut B::Buffer, to: usize, n: usize) {
        let width: usize = self.parts.iter().map(|part| part.width).sum();
        if width == self.stride && self.parts.len() == 1 {
            return backend.copy_rows(self.buffer, from, out, to, width, n);
        }
        for row in 0..n {
            let mut at = (to + row) * width;
            for part in &self.parts {
                let source = (from + row) * self.stride + part.offset;
                backend.copy_rows(self.buffer, source, out, at, 1, part.width);
                at += part.width;
            }
        }
    }
}
