//! [`ForwardingBackend`]: the CPU backend with hooks around its operations.

use std::ops::Range;

use kernels::backend::*;
use kernels::cpu::{Cpu, CpuConfig};

pub(crate) type Buffer = <Cpu as Storage>::Buffer;
type Weight = <Cpu as Storage>::Weight;
type Cache = <Cpu as Storage>::Cache;
type Routes = <Cpu as Storage>::Routes;
type Chosen = <Cpu as Storage>::Chosen;

/// The hooks; by default they do nothing.
pub(crate) trait Hooks: Send + Sync + 'static {
    /// Called after a product of `n` rows was written to `out`.
    fn after_matmul(&self, _cpu: &Cpu, _n: usize, _out: &mut Buffer) {}

    /// Called before `_bytes` bytes are allocated.
    fn before_allocation(&self, _bytes: u128) {}

    /// Called before a weight is loaded.
    fn before_load(&self, _data: &WeightData) {}
}

/// Forwards every operation to the CPU backend. One type for all hooks, so that the forward passes are compiled once.
pub(crate) struct ForwardingBackend {
    cpu: Cpu,
    hooks: Box<dyn Hooks>,
}

impl ForwardingBackend {
    /// Creates a backend of one thread.
    pub(crate) fn new(hooks: impl Hooks) -> ForwardingBackend {
        let config = CpuConfig {
            threads: 1,
            ..CpuConfig::default()
        };
        ForwardingBackend {
            cpu: Cpu::new(config).unwrap(),
            hooks: Box::new(hooks),
        }
    }
}

/// Implements a trait: the given methods, then those that are forwarded unmodified.
macro_rules! forward {
    ($trait:ident { $($own:item)* } $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)?;)*) => {
        impl $trait for ForwardingBackend {
            $($own)*
            $(fn $name(&self, $($arg: $type),*) $(-> $out)? {
                self.cpu.$name($($arg),*)
            })*
        }
    };
}

impl Storage for ForwardingBackend {
    type Buffer = Buffer;
    type Weight = Weight;
    type Cache = Cache;
    type Routes = Routes;
    type Chosen = Chosen;
}

impl AttentionOp for ForwardingBackend {
    /// The operands are typed by backend, so the struct is rebuilt.
    fn attention(
        &self,
        shape: &AttentionShape,
        input: AttentionInput<'_, ForwardingBackend>,
        keys: &[KeyRows],
        out: &mut Buffer,
    ) {
        let AttentionInput { q, k, v, sinks } = input;
        let input = AttentionInput::<'_, Cpu> { q, k, v, sinks };
        self.cpu.attention(shape, input, keys, out);
    }
}

forward! {
    CacheOp {
        fn cache(&self, shape: &CacheShape) -> Cache {
            self.hooks.before_allocation(shape.bytes());
            self.cpu.cache(shape)
        }
    }
    fn store_rows(src: &Buffer, rows: &[usize], cache: &mut Cache);
    fn copy_cached(cache: &mut Cache, from: usize, to: usize, n: usize);
    fn gather_cached(sources: [&Cache; 2], chosen: Option<(&Chosen, usize)>, parts: &[GatheredRows], to: &mut Cache);
}

impl CompressionOp for ForwardingBackend {
    /// The operands are typed by backend, so the structs are rebuilt.
    fn compress(
        &self,
        shape: &CompressionShape,
        input: CompressionInput<'_, ForwardingBackend>,
        sources: &[SourceRow],
        out: &mut Buffer,
    ) {
        let CompressionInput {
            kv,
            gate,
            kept,
            ape,
        } = input;
        let input = CompressionInput::<'_, Cpu> {
            kv,
            gate,
            kept,
            ape,
        };
        self.cpu.compress(shape, input, sources, out);
    }

    fn keep_rows(
        &self,
        kv: &Buffer,
        gate: &Buffer,
        width: usize,
        pairs: &[(usize, usize)],
        kept: &mut Buffer,
    ) {
        self.cpu.keep_rows(kv, gate, width, pairs, kept);
    }

    fn choose_rows(
        &self,
        shape: &IndexerShape,
        input: IndexerInput<'_, ForwardingBackend>,
        visible: &[KeyRows],
        chosen: &mut Chosen,
    ) {
        let IndexerInput { q, weights, k } = input;
        let input = IndexerInput::<'_, Cpu> { q, weights, k };
        self.cpu.choose_rows(shape, input, visible, chosen);
    }
}

forward! {
    HyperConnectionOp {}
    fn stream_weights(shape: &StreamShape, mixes: &Buffer, scale: &Weight, base: &Weight, n: usize, out: &mut Buffer);
    fn gather_streams(shape: &StreamShape, x: &Buffer, weights: &Buffer, n: usize, out: &mut Buffer);
    fn scatter_streams(shape: &StreamShape, x: &mut Buffer, output: &Buffer, weights: &Buffer, n: usize);
}

forward! {
    CausalConvOp {
    }
    fn causal_conv(x: &Buffer, w: &Weight, bias: Option<&Weight>, steps: &[Step], state: &mut Buffer, out: &mut Buffer);
}

forward! {
    ChooseOp {
        fn chosen(&self, n: usize) -> Chosen {
            self.hooks.before_allocation((n * (size_of::<u32>() + size_of::<f32>())) as u128);
            self.cpu.chosen(n)
        }
    }
    fn choose(x: &Buffer, dim: usize, names: Option<&[u32]>, chosen: &mut Chosen, places: Range<usize>);
    fn download_chosen(chosen: &Chosen, at: usize, dst: &mut [Largest]);
    fn embed_chosen(table: &Weight, chosen: &Chosen, places: &[usize], out: &mut Buffer);
}

forward! {
    ElementwiseOp {
    }
    fn add(x: &mut Buffer, y: &Buffer, len: usize);
    fn add_bias(x: &mut Buffer, bias: &Weight, n: usize);
    fn silu_mul(x: &mut Buffer, y: &Buffer, len: usize);
    fn gelu_mul(x: &mut Buffer, y: &Buffer, len: usize);
    fn clamped_silu_mul(x: &mut Buffer, y: &Buffer, len: usize);
    fn limited_silu_mul(x: &mut Buffer, y: &Buffer, limit: f32, len: usize);
    fn relu_squared(x: &mut Buffer, len: usize);
    fn scale(x: &mut Buffer, factor: f32, len: usize);
    fn softcap(x: &mut Buffer, cap: f32, len: usize);
    fn sigmoid_mul(x: &mut Buffer, y: &Buffer, len: usize);
    fn sigmoid_mul_rows(x: &mut Buffer, gate: &Buffer, dim: usize, n: usize);
}

forward! {
    EmbedOp {
    }
    fn embed(table: &Weight, tokens: &[u32], out: &mut Buffer);
}

impl GatedDeltaOp for ForwardingBackend {
    fn gated_delta_rule(
        &self,
        shape: &DeltaShape,
        input: DeltaInput<'_, ForwardingBackend>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let DeltaInput {
            q,
            k,
            v,
            alpha,
            beta,
            dt_bias,
            a,
        } = input;
        let input = DeltaInput::<'_, Cpu> {
            q,
            k,
            v,
            alpha,
            beta,
            dt_bias,
            a,
        };
        self.cpu.gated_delta_rule(shape, input, steps, state, out);
    }
}

impl MatmulOp for ForwardingBackend {
    fn matmul(&self, w: &Weight, x: &Buffer, n: usize, out: &mut Buffer) {
        self.cpu.matmul(w, x, n, out);
        self.hooks.after_matmul(&self.cpu, n, out);
    }
}

forward! {
    MoeOp {
        fn routes(&self, n: usize, n_used: usize) -> Routes {
            let bytes = n * n_used * (size_of::<u32>() + size_of::<f32>());
            self.hooks.before_allocation(bytes as u128);
            self.cpu.routes(n, n_used)
        }
    }
    fn route(logits: &Buffer, bias: Option<&Weight>, routing: &Routing, n: usize, routes: &mut Routes);
    fn route_to(logits: &Buffer, experts: &[u32], routing: &Routing, n: usize, routes: &mut Routes);
    fn choose_all(n: usize, routes: &mut Routes);
    fn download_experts(routes: &Routes, n: usize) -> Vec<u32>;
    fn expert_matmul(experts: &[Weight], routes: &Routes, x: &Buffer, input: ExpertInput, n: usize, out: &mut Buffer);
    fn add_expert_bias(x: &mut Buffer, bias: &Weight, routes: &Routes, n: usize);
    fn scale_experts(x: &mut Buffer, factors: &Weight, routes: &Routes, dim: usize, n: usize);
    fn combine_experts(routes: &Routes, x: &Buffer, dim: usize, n: usize, out: &mut Buffer);
}

forward! {
    NormOp {
    }
    fn rms_norm(x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer);
    fn layer_norm(x: &Buffer, w: &Weight, eps: f32, n: usize, out: &mut Buffer);
    fn l2_norm(x: &mut Buffer, eps: f32, dim: usize, n: usize);
}

forward! {
    RopeOp {
    }
    fn rope(x: &mut Buffer, rope: &Rope, n_head: usize, positions: &[u32]);
}

forward! {
    RowsOp {
    }
    fn gather_rows(src: &Buffer, dim: usize, rows: &[usize], dst: &mut Buffer);
    fn copy_rows(src: &Buffer, from: usize, dst: &mut Buffer, to: usize, dim: usize, n: usize);
    fn copy_within(buffer: &mut Buffer, from: usize, to: usize, len: usize);
    fn copy_columns(src: &Buffer, from: Columns, dst: &mut Buffer, to: Columns, width: usize, n: usize);
}

forward! {
    Backend {
        fn load(&self, data: WeightData) -> Result<Weight, UnsupportedWeight> {
            self.hooks.before_load(&data);
            self.cpu.load(data)
        }

        fn buffer(&self, len: usize) -> Buffer {
            self.hooks.before_allocation((len * size_of::<f32>()) as u128);
            self.cpu.buffer(len)
        }
    }
    fn name() -> String;
    fn weight_bytes(weight: &Weight) -> usize;
    fn free_bytes() -> Option<u64>;
    fn weight_room(file_bytes: u64) -> u64;
    fn upload(src: &[f32], dst: &mut Buffer, at: usize);
    fn download(src: &Buffer, at: usize, dst: &mut [f32]);
}

impl StateSpaceOp for ForwardingBackend {
    fn state_space(
        &self,
        shape: &StateSpaceShape,
        input: StateSpaceInput<'_, ForwardingBackend>,
        steps: &[Step],
        state: &mut Buffer,
        out: &mut Buffer,
    ) {
        let StateSpaceInput {
            mixed,
            dt,
            dt_bias,
            a,
            d,
        } = input;
        let input = StateSpaceInput::<'_, Cpu> {
            mixed,
            dt,
            dt_bias,
            a,
            d,
        };
        self.cpu.state_space(shape, input, steps, state, out);
    }
}
