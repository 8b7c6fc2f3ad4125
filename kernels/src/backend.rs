//! The operations of a forward pass, as every backend offers them.
//!
//! Activations are row-major `f32`: one row per token, rows of one batch in any order and of any
//! sequence. Every operation works row by row, and the value of a row never depends on the rows
//! computed beside it, on their number, or on the number of threads: that is what makes a draft
//! check reproduce plain decoding bit for bit. A backend that cannot hold to it for an operation
//! must not offer that operation.
//!
//! Preconditions on lengths are the caller's to keep (a forward pass computes them from checked
//! hyperparameters); implementations assert them. What depends on a file, such as an element type
//! without a kernel, is an [`UnsupportedWeight`] when the weight is loaded, never later.

use std::fmt::{self, Display};
use std::ops::Range;
use std::sync::Arc;

use schemas::gguf::DType;

/// Bytes that a weight borrows for as long as it lives, usually a mapped part of a file.
pub type WeightBytes = Arc<dyn WeightMemory>;

/// Bytes of a weight, wherever they are kept.
pub trait WeightMemory: AsRef<[u8]> + Send + Sync {
    /// Called when some of them will hardly be read again: a mapped file need not stay in memory.
    fn let_go(&self, bytes: Range<usize>) {
        let _ = bytes;
    }
}

impl WeightMemory for Vec<u8> {}

/// A weight as a file holds it: `n_rows` rows of `n_cols` elements, blocks along the columns.
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

/// This backend has no kernel for the element type.
#[derive(Debug, thiserror::Error)]
#[error("the {backend} backend has no kernel for {dtype} weights")]
pub struct UnsupportedWeight {
    /// [`Backend::name`].
    pub backend: String,
    /// The type that was asked for.
    pub dtype: DType,
}

/// A backend that can no longer compute: what it has given since is not a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{backend}: {reason}")]
pub struct Failure {
    /// [`Backend::name`].
    pub backend: String,
    /// What happened, and what to do.
    pub reason: String,
}

/// The element of a row that is chosen, and its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Largest {
    /// Where it is, or what it stands for.
    pub index: u32,
    /// NaN or infinite where the row has no largest number.
    pub value: f32,
}

impl Largest {
    /// Of a row that is not empty: the first of equals, zeros of either sign being equal. What is no
    /// number counts as infinity, so it does not go unseen.
    #[inline(always)]
    pub fn of(row: &[f32]) -> Largest {
        let most = row.iter().map(|&x| rank(x)).fold(i32::MIN, i32::max);
        // A loop that ends early is not vectorised: first a part that has it.
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

/// Elements that are looked through together.
const PART: usize = 64;

/// Orders numbers as integers.
#[inline(always)]
fn rank(x: f32) -> i32 {
    let bits = (x + 0.0).to_bits() as i32;
    let rank = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    match x.is_nan() {
        true => f32::INFINITY.to_bits() as i32,
        false => rank,
    }
}

/// Which elements of a head one rotation turns together.
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
    /// Angle per position of pair `i`, in radians: `freq_base^(-2i / n_rot)`, or what a scaling of
    /// positions makes of it.
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
    /// Keys that a query sees, the last of its rows; `None`: all of them.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// What a query sees of the causal past of its sequence.
    pub fn visible(&self, past: &KeyRows) -> KeyRows {
        let hidden = self.window.map_or(0, |n| past.len().saturating_sub(n));
        past.start + hidden..past.end
    }
}

/// Element type of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    non_camel_case_types,
    reason = "types have the names that files give them"
)]
pub enum CacheType {
    /// As computed.
    F32,
    /// Half precision.
    #[default]
    F16,
    /// The upper half of single precision.
    BF16,
    /// Codes of a byte, and a half-precision scale for each 32.
    Q8_0,
}

impl CacheType {
    /// All of them, by the names users give.
    pub const NAMES: [(&'static str, CacheType); 4] = [
        ("f32", CacheType::F32),
        ("f16", CacheType::F16),
        ("bf16", CacheType::BF16),
        ("q8_0", CacheType::Q8_0),
    ];

    /// The same type in files.
    pub fn dtype(self) -> DType {
        match self {
            CacheType::F32 => DType::F32,
            CacheType::F16 => DType::F16,
            CacheType::BF16 => DType::BF16,
            CacheType::Q8_0 => DType::Q8_0,
        }
    }

    /// Elements of a block: heads are whole numbers of them.
    pub fn block_len(self) -> usize {
        let layout = self.dtype().layout();
        layout.expect("types of caches have layouts").block_len as usize
    }
}

impl Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = CacheType::NAMES.iter().find(|(_, found)| found == self);
        f.write_str(named.expect("each has a name").0)
    }
}

/// Shape of a cache: rows of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Rows.
    pub n_rows: usize,
    /// Heads of a row.
    pub n_head: usize,
    /// Elements of a head: whole blocks of the type.
    pub head_dim: usize,
    /// Element type.
    pub element: CacheType,
}

impl CacheShape {
    /// Heads take the memory of as many elements more as make a whole number of this.
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

/// The cache rows of one query row's causal past, from the beginning of its sequence, itself included.
pub type KeyRows = Range<usize>;

/// One recurrent step: row `row` of the batch advances a state.
///
/// Steps of one sequence come in order of position. A state lives in a slot; reading one slot and
/// writing another keeps the old state as a snapshot to roll back to.
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
    /// Which value heads use a key head.
    pub order: HeadOrder,
    /// What decays together.
    pub gate: Gate,
}

impl DeltaShape {
    /// The key head of a value head.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Tiled => value_head % self.n_head_k,
            HeadOrder::Grouped => value_head / (self.n_head_v / self.n_head_k),
        }
    }
}

/// What of a value head's state decays together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// All of it.
    PerHead,
    /// The row of each element of a key, as in Kimi Delta Attention.
    PerChannel,
}

impl Gate {
    /// Decays of a head whose keys have so many elements.
    pub fn len(self, head_dim_k: usize) -> usize {
        match self {
            Gate::PerHead => 1,
            Gate::PerChannel => head_dim_k,
        }
    }
}

/// The order of value heads where several use one key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// One for each key head, then the next for each: head `h` uses key head `h % n_head_k`.
    Tiled,
    /// All of the first key head, then all of the next.
    Grouped,
}

/// How rows choose among experts.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// Experts.
    pub n_expert: usize,
    /// Experts that a row chooses.
    pub n_used: usize,
    /// Groups of consecutive experts; up to 1 for none.
    pub n_group: usize,
    /// Groups that a row's experts come from: those with the largest sum of two scores.
    pub n_group_used: usize,
    /// What makes probabilities of the router's outputs.
    pub gating: Gating,
    /// Whether the weights of a row's experts sum to one.
    pub normalised: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// What makes probabilities of a router's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Each expert's sigmoid.
    Sigmoid,
}

/// What a row's experts multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInput {
    /// All of them the row: `(n, n_in)`.
    PerRow,
    /// Each a row of its own: `(n, n_used, n_in)`.
    PerExpert,
}

/// Rows of one matrix laid over rows of another: see [`Backend::copy_columns`].
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Elements from one row to the next.
    pub stride: usize,
    /// First element taken of each row.
    pub offset: usize,
}

/// Every operation a forward pass uses.
pub trait Backend: Send + Sync + 'static {
    /// `f32` elements where the backend computes.
    type Buffer: Send + Sync;
    /// A weight made ready for this backend.
    type Weight: Send + Sync;
    /// Keys or values of the tokens seen so far, in a type of their own.
    type Cache: Send + Sync;
    /// Which experts each row has chosen, and how much each counts.
    type Routes: Send + Sync;
    /// Tokens that were chosen, which the host need not know.
    type Chosen: Send + Sync;

    /// Name and the instruction set or device in use, for logs and reports.
    fn name(&self) -> String;

    /// What has gone wrong since the beginning, if anything: a device may be lost, or out of memory.
    /// Operations say nothing of it; whoever uses a result asks first.
    fn failure(&self) -> Option<Failure> {
        None
    }

    /// Makes a weight ready.
    ///
    /// # Errors
    /// The element type has no kernel.
    fn load(&self, data: WeightData) -> Result<Self::Weight, UnsupportedWeight>;

    /// Bytes read from memory when the whole weight is used once.
    fn weight_bytes(&self, weight: &Self::Weight) -> usize;

    /// Bytes that buffers could still take; `None` where nothing tells.
    fn free_bytes(&self) -> Option<u64>;

    /// Bytes of those that weights take which have so many in their file: none where files are mapped,
    /// or leave memory while weights are copied.
    fn weight_room(&self, file_bytes: u64) -> u64;

    /// Measures how many bytes are read from memory in a second, by as many threads as compute; `None`
    /// for a backend that does not measure it. Takes up to a second.
    fn read_rate(&self) -> Option<f64> {
        None
    }

    /// A buffer of `len` elements, filled with NaN so that a read of what nobody wrote shows.
    fn buffer(&self, len: usize) -> Self::Buffer;

    /// A buffer of `len` elements for the activations of passes, most of which are shorter than it
    /// has room for: it may come without memory for what has not been written.
    fn scratch(&self, len: usize) -> Self::Buffer {
        self.buffer(len)
    }

    /// A cache whose elements are all NaN, or have a NaN scale, so that a read of what nobody wrote
    /// shows.
    fn cache(&self, shape: &CacheShape) -> Self::Cache;

    /// Room for the choice of `n_used` experts for each of `n` rows.
    fn routes(&self, n: usize, n_used: usize) -> Self::Routes;

    /// Room for `n` tokens.
    fn chosen(&self, n: usize) -> Self::Chosen;

    /// Copies host memory to `dst[at..]`.
    fn upload(&self, src: &[f32], dst: &mut Self::Buffer, at: usize);

    /// Copies `src[at..]` to host memory.
    fn download(&self, src: &Self::Buffer, at: usize, dst: &mut [f32]);

    /// `out[i] = table[tokens[i]]`. table `(n_vocab, n_embd)`, out `(tokens.len(), n_embd)`.
    fn embed(&self, table: &Self::Weight, tokens: &[u32], out: &mut Self::Buffer);

    /// Chooses the [`Largest`] of each of as many rows of `dim` elements as there are places. Its
    /// `index` is what `names` `(dim)` says of it, where there are names.
    fn choose(
        &self,
        x: &Self::Buffer,
        dim: usize,
        names: Option<&[u32]>,
        chosen: &mut Self::Chosen,
        places: Range<usize>,
    );

    /// Copies what was chosen, from a place on, to host memory.
    fn download_chosen(&self, chosen: &Self::Chosen, at: usize, dst: &mut [Largest]);

    /// [`Backend::embed`] of the tokens that were chosen at some places. Every one is a row of the
    /// table.
    fn embed_chosen(
        &self,
        table: &Self::Weight,
        chosen: &Self::Chosen,
        places: &[usize],
        out: &mut Self::Buffer,
    );

    /// `out = x * w^T`, accumulated in `f32`. w `(n_out, n_in)`, x `(n, n_in)`, out `(n, n_out)`.
    fn matmul(&self, w: &Self::Weight, x: &Self::Buffer, n: usize, out: &mut Self::Buffer);

    /// `out = x / sqrt(mean(x^2) + eps) * w` for `n` rows of the length of `w`.
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

    /// Adds `bias` to each of `n` rows of its length.
    fn add_bias(&self, x: &mut Self::Buffer, bias: &Self::Weight, n: usize);

    /// `x = silu(x) * y` over the first `len` elements; `silu(v) = v / (1 + exp(-v))`.
    fn silu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = gelu(x) * y` over the first `len` elements, with the approximation
    /// `gelu(v) = v / 2 (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3)))`.
    fn gelu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = g * sigmoid(1.702 g) * (u + 1)` over the first `len` elements, where `g` is `x` up to 7,
    /// and `u` is `y` within -7 and 7.
    fn clamped_silu_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// `x = x * factor` over the first `len` elements.
    fn scale(&self, x: &mut Self::Buffer, factor: f32, len: usize);

    /// `x = cap * tanh(x / cap)` over the first `len` elements.
    fn softcap(&self, x: &mut Self::Buffer, cap: f32, len: usize);

    /// `x = x * sigmoid(y)` over the first `len` elements.
    fn sigmoid_mul(&self, x: &mut Self::Buffer, y: &Self::Buffer, len: usize);

    /// Multiplies each of `n` rows of `dim` elements by the sigmoid of its element of `gate`, `(n)`.
    fn sigmoid_mul_rows(&self, x: &mut Self::Buffer, gate: &Self::Buffer, dim: usize, n: usize);

    /// Chooses the experts of `n` rows from the router's outputs, `(n, n_expert)`: those of the
    /// largest probability, `bias` `(n_expert)` added for the choice alone; of equals the first.
    /// Each counts with its probability, over their sum where `routing` says so, times the factor.
    fn route(
        &self,
        logits: &Self::Buffer,
        bias: Option<&Self::Weight>,
        routing: &Routing,
        n: usize,
        routes: &mut Self::Routes,
    );

    /// Lets each of `n` rows choose every expert there is room for, in order and alike: experts
    /// that are the heads of a projection.
    fn choose_all(&self, n: usize, routes: &mut Self::Routes);

    /// [`Backend::matmul`] of each row with the experts it chose: out `(n, n_used, n_out)`, in
    /// order of choice. Every expert is a weight `(n_out, n_in)`.
    fn expert_matmul(
        &self,
        experts: &[Self::Weight],
        routes: &Self::Routes,
        x: &Self::Buffer,
        input: ExpertInput,
        n: usize,
        out: &mut Self::Buffer,
    );

    /// Adds to what the chosen experts of `n` rows made of them, (n, n_used, dim), the bias of each:
    /// bias `(n_expert, dim)`.
    fn add_expert_bias(
        &self,
        x: &mut Self::Buffer,
        bias: &Self::Weight,
        routes: &Self::Routes,
        n: usize,
    );

    /// Sums what the experts of each row made of it, `(n, n_used, dim)`, by how much each counts,
    /// in order of choice: out `(n, dim)`.
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

    /// Rounds row `i` of `src`, `n_head * head_dim` elements, to row `rows[i]` of a cache, as
    /// quantizing to its type does. What is no finite number there stays none.
    fn store_rows(&self, src: &Self::Buffer, rows: &[usize], cache: &mut Self::Cache);

    /// Copies row `rows[i]` of `src`, `dim` elements, to row `i` of `dst`.
    fn gather_rows(&self, src: &Self::Buffer, dim: usize, rows: &[usize], dst: &mut Self::Buffer);

    /// Copies `n` rows of `dim` elements from row `from` of `src` on to row `to` of `dst` on.
    fn copy_rows(
        &self,
        src: &Self::Buffer,
        from: usize,
        dst: &mut Self::Buffer,
        to: usize,
        dim: usize,
        n: usize,
    );

    /// Copies `len` elements of a buffer from `from` on to `to` on; the two do not overlap.
    fn copy_within(&self, buffer: &mut Self::Buffer, from: usize, to: usize, len: usize);

    /// Copies `n` rows of a cache from row `from` on to row `to` on, as they are; the two do not
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

    /// Softmax attention of each query row over those of its own cache rows that it sees.
    /// q and out `(keys.len(), n_head * head_dim)`, k and v rows of `n_head_kv` heads of `head_dim`.
    /// Keys are visited in order in blocks of a fixed size, whatever the batch.
    fn attention(
        &self,
        shape: &AttentionShape,
        input: AttentionInput<'_, Self>,
        keys: &[KeyRows],
        out: &mut Self::Buffer,
    );

    /// Depthwise causal convolution followed by SiLU, one token a step.
    ///
    /// x and out `(n, n_channel)`, w `(n_channel, kernel)` with taps oldest first, state slots
    /// `(kernel - 1, n_channel)`: the raw inputs before the step, oldest first. Rows without a
    /// step keep whatever `out` held.
    fn causal_conv(
        &self,
        x: &Self::Buffer,
        w: &Self::Weight,
        steps: &[Step],
        state: &mut Self::Buffer,
        out: &mut Self::Buffer,
    );

    /// The gated delta rule, one token a step, per value head with state `S` of shape
    /// `(head_dim_k, head_dim_v)`:
    /// `g = exp(softplus(alpha + dt_bias) * a)`, one or one for each row of `S`, `b = sigmoid(beta)`,
    /// then `S = g S; S = S + k (b (v - S^T k))^T; out = S^T q / sqrt(head_dim_k)`.
    ///
    /// q and k `(n, n_head_k * head_dim_k)`, already normalised; v and out
    /// `(n, n_head_v * head_dim_v)`; alpha `(n, n_head_v * n_gate)` with [`Gate::len`] gates a head,
    /// dt_bias `(n_head_v * n_gate)`; beta `(n, n_head_v)`; a `(n_head_v)`; state slots
    /// `n_head_v * head_dim_k * head_dim_v`.
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
    /// The cache's keys.
    pub k: &'a B::Cache,
    /// The cache's values.
    pub v: &'a B::Cache,
    /// Scores of one more key for each query head, which has no value: (n_head).
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
    /// Write strength, before the sigmoid.
    pub beta: &'a B::Buffer,
    /// `ssm_dt.bias`.
    pub dt_bias: &'a B::Weight,
    /// `ssm_a`: minus the exponential of the checkpoint's `A_log`.
    pub a: &'a B::Weight,
}
