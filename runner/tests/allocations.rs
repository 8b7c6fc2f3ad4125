//! Decoding does not allocate after warm-up: neither passes of any architecture, nor a driver
//! without speculators.

mod coded;

use std::sync::Arc;

use kernels::cpu::{Cpu, CpuConfig};
use peak_alloc::PeakAlloc;
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::{Model, load_target};
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{DecodeConfig, Driver, Policy, Proof, Request, TokenEvent};

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const N_SEQ: usize = 3;
const WIDTH: usize = 9;

/// Returns the peak number of bytes that `work` allocates: the minimum of several runs, because the
/// test harness's thread allocates at any time.
fn taken(mut work: impl FnMut()) -> usize {
    let times = (0..4).map(|_| {
        let before = ALLOCATED.current_usage();
        ALLOCATED.reset_peak_usage();
        work();
        ALLOCATED.peak_usage().saturating_sub(before)
    });
    times.min().unwrap_or_default()
}

fn context(model: &Arc<Model<Cpu>>, backend: &Arc<Cpu>) -> Context<Cpu> {
    let cache = CacheConfig {
        n_seq: N_SEQ,
        n_ctx: 64,
        n_rollback: WIDTH,
        types: CacheTypes::default(),
    };
    let sizes = ContextConfig {
        cache,
        n_batch: N_SEQ * WIDTH,
        n_outputs: N_SEQ * WIDTH,
    };
    Context::new(Arc::clone(backend), Arc::clone(model), sizes).unwrap()
}

/// A single test, because no other thread may allocate meanwhile.
#[test]
fn decoding_allocates_nothing() {
    for plan in fixtures::all().flat_map(|plan| [coded::coded(plan.clone()), plan]) {
        // With one thread each pass does the same; with more, the order of threads varies.
        let config = CpuConfig {
            threads: 1,
            ..CpuConfig::default()
        };
        let backend = Arc::new(Cpu::new(config).unwrap());
        let model = Arc::new(load_target(&*backend, &plan).unwrap());
        let arch = plan.metadata.need_str("general.architecture").unwrap();
        let mut context = context(&model, &backend);
        for n_seq in [1, N_SEQ] {
            for width in [1, 2, WIDTH] {
                let mut batches = vec![Batch::default(); 5];
                for (i, batch) in batches.iter_mut().enumerate() {
                    for seq in 0..n_seq {
                        let start = (i * width) as u32;
                        batch.push(seq, start, &[7 + seq as u32; WIDTH][..width], Outputs::All);
                    }
                }
                let mut run = || {
                    for batch in &batches {
                        context.forward(batch, None);
                    }
                    for seq in 0..n_seq {
                        context.truncate(seq, 0);
                    }
                };
                // Buffers allocated once, on first use, including those of experts, exist after
                // this.
                run();
                assert_eq!(taken(run), 0, "{arch}: {n_seq} sequences of {width} tokens");
            }
        }

        let mut driver = Driver::new(context, Vec::new(), Policy::default());
        let mut on_token = |_: TokenEvent<'_>| ();
        let mut config = DecodeConfig {
            on_token: Some(&mut on_token),
            ..DecodeConfig::new(Sampler::new(SampleConfig::at(0.0, 0)).unwrap(), &|_| false)
        };
        let mut decode = |proof: Proof| {
            config.text.proof = proof;
            for seq in 0..N_SEQ {
                let request = Request::new(seq.to_string(), vec![3, 1, 4, 1, 5], 20);
                driver.join(seq, seq, &request, &mut config).unwrap();
            }
            let mut rounds = |n| (0..n).for_each(|_| _ = driver.round(&mut config).unwrap());
            rounds(2);
            taken(|| rounds(4))
        };
        decode(Proof::Logits);
        for proof in [Proof::Logits, Proof::None] {
            assert_eq!(decode(proof), 0, "{arch}: plain decoding, {proof:?}");
        }
    }
}
