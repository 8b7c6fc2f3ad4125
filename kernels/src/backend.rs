//! The operations of a forward pass that every backend implements.
//!
//! Activations are row-major `f32`, one row per token; a batch holds rows of any sequences in any order.
//! Every operation works row by row, and the value of a row never depends on the other rows of the batch,
//! on their number, or on the number of threads. This batch invariance is why verifying a draft reproduces
//! plain decoding bit for bit. A backend that cannot guarantee it for an operation must not offer that
//! operation.
//!
//! The caller guarantees matching lengths (a forward pass computes them from checked hyperparameters);
//! implementations assert them. Properties that depend on a file, such as an element type without a kernel,
//! are reported as [`UnsupportedWeight`] when the weight is loaded, never later.

use std::fmt::{self, Display};
use std::ops::Range;
use std::sync::Arc;

use schemas::gguf::DType;

use crate::types::common::cache::CacheAccess;
use crate::types::{ElementType, TYPES};

/// The bytes of a weight, shared for as long as the weight lives; usually a range of a mapped file.
pub type WeightBytes = Arc<dyn WeightMemory>;

/// Memory that holds the bytes of a weight.
pub trait WeightMemory: AsRef<[u8]> + Send + Sync {
    /// Releases bytes that are not expected to be read again: pages of a mapped file may leave memory.
    fn release_pages(&self, bytes: Range<usize>) {
        let _ = bytes;
    }
}

impl WeightMemory for Vec<u8> {}

/// A weight as stored in a file: `n_rows` rows of `n_cols` elements, quantization blocks along the columns.
#[derive(Clone)]
pub struct WeightData {
    /// Element type.
    pub dtype: DType,
    /// Output features; 1 for a vector.
    pub n_rows: usize,
    /// Input features, the contiguous axis.
    pub n_cols: usize,
    /// `n_rows` times the row size of `dtype`.
    pub bytes: WeightBytes,
}

/// The backend has no kernel for the element type.
#[derive(Debug, thiserror::Error)]
#[error("the {backend} backend has no kernel for {dtype} weights")]
pub struct UnsupportedWeight {
    /// [`Backend::name`].
    pub backend: String,
    /// The unsupported type.
    pub dtype: DType,
}

/// A backend failure. Results computed after it are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend}: {reason}")]
pub struct Failure {
    /// [`Backend::name`].
    pub backend: String,
    /// The cause, and what to do.
    pub reason: String,
}

/// The largest element of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Largest {
    /// Its index in the row, or the token that this index stands for.
    pub index: u32,
    /// Its value. NaN or infinite if the row contains NaN or infinity.
    pub value: f32,
}

impl Largest {
    /// Returns the largest element of a non-empty row, the first one if several are equal; zeros of either
    /// sign are equal. NaN ranks as infinity, so that it is not missed.
    #[inline(always)]
    pub fn of(row: &[f32]) -> Largest {
        let most = row.iter().map(|&x| rank(x)).fold(i32::MIN, i32::max);
        // A loop with an early exit is not vectorised, so this finds the part that holds the maximum
        // first.
        let has = |part: &[f32]| part.iter().fold(false, |has, &x| has | (rank(x) == most));
        let parts = row.chunks(PART);
        let start = parts.take_while(|part| !has(part)).count() * PART;
        let index = row[start..].iter().position(|&x| rank(x) == most);
        let index = start + index.expect("a row that is not empty");
        Largest {
            index: index as u32,
            value: row[index],
        }
    }
}

/// Elements per part of the search.
const PART: usize = 64;

/// Maps a number to an integer of the same order.
#[inline(always)]
fn rank(x: f32) -> i32 {
    let bits = (x + 0.0).to_bits() as i32;
    let rank = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    if x.is_nan() {
        f32::INFINITY.to_bits() as i32
    } else {
        rank
    }
}

/// Pairing of the elements of a head that are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// `(2i, 2i + 1)`: llama, eagle3.
    Norm,
    /// `(i, i + n_rot / 2)`: the Qwen family; interleaved M-RoPE with equal text positions too.
    Neox,
}

/// Rotary position embedding.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Pairing.
    pub layout: RopeLayout,
    /// Elements per head; the first `2 * inv_freq.len()` are rotated, the rest pass through.
    pub head_dim: usize,
    /// Angle of pair `i` per position, in radians: `freq_base^(-2i / n_rot)`, possibly changed by RoPE
    /// scaling.
    pub inv_freq: Vec<f32>,
    /// Factor on rotated elements.
    pub magnitude: f32,
}

/// Shape of an attention operation.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; query head `h` reads head `h / (n_head / n_head_kv)`.
    pub n_head_kv: usize,
    /// Elements of a query or key head.
    pub head_dim: usize,
    /// Factor on `q . k` before the softmax.
    pub scale: f32,
    /// Sliding window: a query attends to the last `window` keys of its past; `None` for all of them.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// Returns the rows of `past` that a query attends to under the window.
    pub fn visible(&self, past: &KeyRows) -> KeyRows {
        let hidden = self.window.map_or(0, |n| past.len().saturating_sub(n));
        past.start + hidden..past.end
    }
}

/// Element type of a KV cache: one whose descriptor has functions for caches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheType(DType);

impl CacheType {
    /// Single precision.
    pub const F32: CacheType = CacheType(DType::F32);
    /// Half precision.
    pub const F16: CacheType = CacheType(DType::F16);
    /// bfloat16: the upper half of single precision.
    pub const BF16: CacheType = CacheType(DType::BF16);
    /// 8-bit quants in blocks of 32 with a half-precision scale.
    pub const Q8_0: CacheType = CacheType(DType::Q8_0);

    /// Returns all types.
    pub fn all() -> impl Iterator<Item = CacheType> {
        let types = TYPES.iter().filter(|t| t.cache.is_some());
        types.map(|t| CacheType(t.dtype))
    }

    /// Returns all types with the names that users give.
    pub fn names() -> Vec<(&'static str, CacheType)> {
        CacheType::all().map(|t| (t.name(), t)).collect()
    }

    /// Returns the name that users give.
    pub fn name(self) -> &'static str {
        self.descriptor().1.name
    }

    /// Returns the corresponding element type of files.
    pub fn dtype(self) -> DType {
        self.0
    }

    /// Elements per block. Head sizes must be a multiple of it.
    pub fn block_len(self) -> usize {
        let layout = self.0.layout();
        layout.expect("types of caches have layouts").block_len as usize
    }

    /// Returns the type's descriptor and its functions for caches.
    pub(crate) fn descriptor(self) -> (&'static ElementType, &'static CacheAccess) {
        let found = TYPES.iter().find(|t| t.dtype == self.0);
        let found = found.and_then(|t| Some((t, t.cache.as_ref()?)));
        found.expect("a cache type has functions for caches")
    }
}

impl Default for CacheType {
    fn default() -> CacheType {
        CacheType::F16
    }
}

impl Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// Shape of a KV cache: rows of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Rows, one per cell.
    pub n_rows: usize,
    /// Heads per row.
    pub n_head: usize,
    /// Elements per head, a multiple of the type's block length.
    pub head_dim: usize,
    /// Element type.
    pub element: CacheType,
}

impl CacheShape {
    /// Heads are padded in memory to a multiple of this many elements.
    pub const PADDED_TO: usize = 32;

    /// Bytes of one head of a row.
    pub fn head_bytes(&self) -> usize {
        let len = self.head_dim.next_multiple_of(CacheShape::PADDED_TO);
        let bytes = self.element.dtype().row_bytes(len as u64);
        bytes.expect("whole blocks") as usize
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> u128 {
        self.n_rows as u128 * self.n_head as u128 * self.head_bytes() as u128
    }
}

/// Cache rows of a query's causal past: from the start of its sequence to its own row, inclusive.
pub type KeyRows = Range<usize>;

/// One recurrent step: row `row` of the batch advances a recurrent state.
///
/// Steps of one sequence are ordered by position. A state is stored in a slot. Reading one slot and writing
/// another keeps the old state as a snapshot for rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Row of the batch.
    pub row: usize,
    /// Slot with the state before the step; `None`: the zero state that starts a sequence.
    pub read: Option<usize>,
    /// Slot that receives the state after the step; may equal `read`.
    pub write: usize,
}

/// Shape of a gated delta rule operation.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape {
    /// Key (and query) heads.
    pub n_head_k: usize,
    /// Value heads.
    pub n_head_v: usize,
    /// Elements of a query or key head.
    pub head_dim_k: usize,
    /// Elements of a value head.
    pub head_dim_v: usize,
    /// Mapping of value heads to key heads.
    pub order: HeadOrder,
    /// Granularity of the decay.
    pub gate: Gate,
}

impl DeltaShape {
    /// Returns the key head that a value head uses.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Tiled => value_head % self.n_head_k,
            HeadOrder::Grouped => value_head / (self.n_head_v / self.n_head_k),
        }
    }
}

/// Granularity of the decay of a value head's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// One decay for the whole state.
    PerHead,
    /// One decay per row of the state, that is, per element of the key, as in Kimi Delta Attention.
    PerChannel,
}

impl Gate {
    /// Number of decays per head, for keys of `head_dim_k` elements.
    pub fn len(self, head_dim_k: usize) -> usize {
        match self {
            Gate::PerHead => 1,
            Gate::PerChannel => head_dim_k,
        }
    }
}

/// Order of value heads where several share one key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// One for each key head, then the next for each: head `h` uses key head `h % n_head_k`.
    Tiled,
    /// All value heads of the first key head, then those of the next: head `h` uses key head `h / (n_head_v
    /// / n_head_k)`.
    Grouped,
}

/// Expert selection of a mixture-of-experts layer.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// Experts.
    pub n_expert: usize,
    /// Experts used per row.
    pub n_used: usize,
    /// Groups of consecutive experts; 0 or 1 for no groups.
    pub n_group: usize,
    /// Groups that a row's experts may come from: the ones with the largest sum of their two best scores.
    pub n_group_used: usize,
    /// Function that turns router logits into probabilities.
    pub gating: Gating,
    /// True if the weights of a row's experts are normalised to sum to one.
    pub normalised: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// Function that turns router logits into probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
}

/// Input layout of an expert product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInput {
    /// All experts of a row multiply the same row: `(n, n_in)`.
    PerRow,
    /// Each expert has its own input row: `(n, n_used, n_in)`.
    PerExpert,
}

/// Layout of one side of [`Backend::copy_columns`].
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Elements from one row to the next.
    pub stride: usize,
    /// First element of each row.
    pub offset: usize,
}

/// All operations of a forward pass.
pub trait Backend: Send + Sync + 'static {
    /// An `f32` buffer in the backend's memory.
    type Buffer: Send + Sync;
    /// A weight loaded for this backend.
    type Weight: Send + Sync;
    /// Keys or values of past tokens, in their own element type.
    type Cache: Send + Sync;
    /// The experts that each row uses, and their weights.
    type Routes: Send + Sync;
    /// Chosen tokens, which may stay on the device.
    type Chosen: Send + Sync;

    /// Returns the backend's name and the instruction set or device in use, for logs and reports.
    fn name(&self) -> String;

    /// Returns the first failure so far, if any, such as a lost device or exhausted device memory.
    /// Operations do not report failures; callers check before they use a result.
    fn failure(&self) -> Option<Failure> {
        None
    }

    /// Loads a weight.
    ///
    /// # Errors
    /// The element type has no kernel.
    fn load(&self, data: WeightData) -> Result<Self::Weight, UnsupportedWeight>;

    /// Bytes read from memory when the whole weight is used once.
    fn weight_bytes(&self, weight: &Self::Weight) -> usize;

    /// Bytes that can still be allocated for buffers; `None` if unknown.
    fn free_bytes(&self) -> Option<u64>;

    /// Bytes of memory that a weight of `file_bytes` in the file takes from the backend's free bytes: 0
    /// where files are mapped, or are released while weights are copied.
    fn weight_room(&self, file_bytes: u64) -> u64;

    /// Measures the memory read bandwidth of all compute threads together, in bytes per second; takes up to
    /// a second. `None` if the backend does not measure it.
    fn read_rate(&self) -> Option<f64> {
        None
    }

    /// Returns a buffer of `len` elements filled with NaN, so that a read of an unwritten element shows.
    fn buffer(&self, len: usize) -> Self::Buffer;

    /// Returns a buffer of `len` elements for activations. Most passes use only part of it, so memory may
    /// be committed only when it is written.
    fn scratch(&self, len: usize) -> Self::Buffer {
        self.buffer(len)
    }

    /// Returns a cache in which every element, or its block scale, is NaN, so that a read of an unwritten
    /// cell shows.
    fn cache(&self, shape: &CacheShape) -> Self::Cache;

    /// Returns storage for the choice of `n_used` experts by each of `n` rows.
    fn routes(&self, n: usize, n_used: usize) -> Self::Routes;

    /// Returns storage for `n` chosen tokens.
    fn chosen(&self, n: usize) -> Self::Chosen;

    /// Copies host memory to `dst[at..]`.
    fn upload(&self, src: &[f32], dst: &mut Self::Buffer, at: usize);

    /// Copies `src[at..]` to host memory.
    fn download(&self, src: &Self::Buffer, at: usize, dst: &mut [f32]);

    /// `out[i] = table[tokens[i]]`. table `(n_vocab, n_embd)`, out `(tokens.len(), n_embd)`.
    fn embed(&self, table: &Self::Weight, tokens: &[u32], out: &mut Self::Buffer);

    /// Chooses the [`Largest`] element of each row of `dim` elements and stores it in `places`, one row per
    /// place. With `names`, `(dim)`, the stored `index` is `names[index]`.
    fn choose(
        &self,
        x: &Self::Buffer,
        dim: usize,
        names: Option<&[u32]>,
        chosen: &mut Self::Chosen,
        places: Range<usize>,
    );

    /// Copies chosen tokens from place `at` on to host memory.
    fn download_chosen(&self, chosen: &Self::Chosen, at: usize, dst: &mut [Largest]);

    /// [`Backend::embed`] of the tokens chosen at `places`. Every token must be a row of the table.
    fn embed_chosen(
        &self,
        table: &Self::Weight,
        chosen: &Self::Chosen,
        places: &[usize],
        out: &mut Self::Buffer,
    );

    /// `out = x * w^T`, accumulated in `f32`. w `(n_out, n_in)`, x `(n, n_in)`, out `(n, n_out)`.
    fn matmul(&self, w: &Self::Weight, x: &Self::Buffer, n: usize, out: &mut Self::Buffer);

    /// `out = x / sqrt(mean(x^2) + eps) * w` for `n` rows of as many elements as `w` has.
    fn rms_norm(
        &self,
        x: &Self::Buffer,
        w: &Self::Weight,
        eps: f32,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// `x = x / sqrt(sum(x^2) + eps)`, in place, for `n` rows of `dim` elements.
    fn l2_norm(&self, x: &mut Self::Buffer, eps: f32, dim: usize, n: usize);

    /// `x += y` over the first `len` elements.
    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// Adds `bias` to each of `n` rows of as many elements as it has.
    fn add_bias(&self, x: &mut Self::Buffer, bias: &Self::Weight, n: usize);

    /// `x = silu(x) * y` over the first `len` elements; `silu(v) = v / (1 + exp(-v))`.
    fn silu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = gelu(x) * y` over the first `len` elements, with the approximation
    /// `gelu(v) = v / 2 (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3)))`.
    fn gelu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = g * sigmoid(1.702 g) * (u + 1)` over the first `len` elements, with `g = min(x, 7)` and `u =
    /// clamp(y, -7, 7)`.
    fn clamped_silu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = x * factor` over the first `len` elements.
    fn scale(&self, x: &mut Self::Buffer, factor: f32, len: usize);

    /// `x = cap * tanh(x / cap)` over the first `len` elements.
    fn softcap(&self, x: &mut Self::Buffer, cap: f32, len: usize);

    /// `x = x * sigmoid(y)` over the first `len` elements.
    fn sigmoid_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// Multiplies each of `n` rows of `dim` elements by the sigmoid of its element of `gate`, `(n)`.
    fn sigmoid_mul_rows(&self, x: &mut Self::Buffer, gate: &Self::Buffer, dim: usize, n: usize);

    /// Chooses the experts of `n` rows from the router logits, `(n, n_expert)`: the largest probabilities,
    /// the first one if several are equal. `bias`, `(n_expert)`, is added for the choice only. The weight
    /// of an expert is its probability, divided by the sum over the chosen experts if `routing.normalised`,
    /// times `routing.scale`.
    fn route(
        &self,
        logits: &Self::Buffer,
        bias: Option<&Self::Weight>,
        routing: &Routing,
        n: usize,
        routes: &mut Self::Routes,
    );

    /// Routes each of `n` rows to experts `0..n_used`, all with weight 1. Used where the experts are
    /// the heads of a projection.
    fn choose_all(&self, n: usize, routes: &mut Self::Routes);

    /// [`Backend::matmul`] of each row with its chosen experts: out `(n, n_used, n_out)`, in order of
    /// choice. Every expert is a weight `(n_out, n_in)`.
    fn expert_matmul(
        &self,
        experts: &[Self::Weight],
        routes: &Self::Routes,
        x: &Self::Buffer,
        input: ExpertInput,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// Adds the bias of each chosen expert to its output: x `(n, n_used, dim)`, bias `(n_expert, dim)`.
    fn add_expert_bias(
        &self,
        x: &mut Self::Buffer,
        bias: &Self::Weight,
        routes: &Self::Routes,
        n: usize,
    );

    /// Sums the expert outputs of each row, `(n, n_used, dim)`, with the routing weights, in order of
    /// choice: out `(n, dim)`.
    fn combine_experts(
        &self,
        routes: &Self::Routes,
        x: &Self::Buffer,
        dim: usize,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// Rotates `n_head` heads in each row of x, `(positions.len(), n_head * head_dim)`, in place.
    fn rope(&self, x: &mut Self::Buffer, rope: &Rope, n_head: usize, positions: &[u32]);

    /// Stores row `i` of `src`, `n_head * head_dim` elements, in row `rows[i]` of a cache, rounded as
    /// quantizing to its type does. NaN and infinity stay non-finite.
    fn store_rows(&self, src: &Self::Buffer, rows: &[usize], cache: &mut Self::Cache);

    /// Copies row `rows[i]` of `src`, `dim` elements, to row `i` of `dst`.
    fn gather_rows(&self, src: &Self::Buffer, dim: usize, rows: &[usize], dst: &mut Self::Buffer);

    /// Copies `n` rows of `dim` elements from `src`, starting at row `from`, to `dst`, starting at row
    /// `to`.
    fn copy_rows(
        &self,
        src: &Self::Buffer,
        from: usize,
        dst: &mut Self::Buffer,
        to: usize,
        dim: usize,
        n: usize,
    );

    /// Copies `len` elements within a buffer, from offset `from` to offset `to`; the ranges do not overlap.
    fn copy_within(&self, buffer: &mut Self::Buffer, from: usize, to: usize, len: usize);

    /// Copies `n` rows of a cache from row `from` to row `to` without conversion; the ranges do not
    /// overlap.
    fn copy_cached(&self, cache: &mut Self::Cache, from: usize, to: usize, n: usize);

    /// For each of `n` rows copies `width` elements: `dst[i * to.stride + to.offset ..]` from
    /// `src[i * from.stride + from.offset ..]`. Splits and joins packed projections.
    fn copy_columns(
        &self,
        src: &Self::Buffer,
        from: Columns,
        dst: &mut Self::Buffer,
        to: Columns,
        width: usize,
        n: usize,
    );

    /// Softmax attention. Each query row attends to the visible rows of its sequence,
    /// `shape.visible(keys[i])`. q and out are `(keys.len(), n_head * head_dim)`, cache rows have
    /// `n_head_kv` heads of `head_dim`. Keys are processed in order in blocks of a fixed size, independent
    /// of the batch.
    fn attention(
        &self,
        shape: &AttentionShape,
        input: AttentionInput<'_, Self>,
        keys: &[KeyRows],
        out: &mut Self::Buffer,
    );

    /// Depthwise causal convolution followed by SiLU, one step per token.
    ///
    /// x and out `(n, n_channel)`, w `(n_channel, kernel)` with taps oldest first, state slots `(kernel -
    /// 1, n_channel)`: the previous raw inputs, oldest first. Rows of `out` without a step are unchanged.
    fn causal_conv(
        &self,
        x: &Self::Buffer,
        w: &Self::Weight,
        steps: &[Step],
        state: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// The gated delta rule, one step per token, per value head with state `S` of shape `(head_dim_k,
    /// head_dim_v)`: `g = exp(softplus(alpha + dt_bias) * a)`, one per head or one per row of `S`, `b =
    /// sigmoid(beta)`, then `S = g S; S = S + k (b (v - S^T k))^T; out = S^T q / sqrt(head_dim_k)`.
    ///
    /// q and k `(n, n_head_k * head_dim_k)`, already normalised; v and out `(n, n_head_v * head_dim_v)`;
    /// alpha `(n, n_head_v * n_gate)` with [`Gate::len`] gates per head, dt_bias `(n_head_v * n_gate)`;
    /// beta `(n, n_head_v)`; a `(n_head_v)`; state slots `n_head_v * head_dim_k * head_dim_v`.
    fn gated_delta_rule(
        &self,
        shape: &DeltaShape,
        input: DeltaInput<'_, Self>,
        steps: &[Step],
        state: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );
}

/// Operands of [`Backend::attention`].
pub struct AttentionInput<'a, B: Backend + ?Sized> {
    /// Queries.
    pub q: &'a B::Buffer,
    /// The key cache.
    pub k: &'a B::Cache,
    /// The value cache.
    pub v: &'a B::Cache,
    /// Attention sinks, `(n_head)`: the score of one more key per query head, without a value.
    pub sinks: Option<&'a B::Weight>,
}

/// Operands of [`Backend::gated_delta_rule`].
pub struct DeltaInput<'a, B: Backend + ?Sized> {
    /// Normalised queries.
    pub q: &'a B::Buffer,
    /// Normalised keys.
    pub k: &'a B::Buffer,
    /// Values.
    pub v: &'a B::Buffer,
    /// Decay input, before the bias.
    pub alpha: &'a B::Buffer,
    /// Write strength (beta), before the sigmoid.
    pub beta: &'a B::Buffer,
    /// `ssm_dt.bias`.
    pub dt_bias: &'a B::Weight,
    /// `ssm_a`: minus the exponential of the checkpoint's `A_log`.
    pub a: &'a B::Weight,
}
