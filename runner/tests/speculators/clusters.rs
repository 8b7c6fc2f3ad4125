//! Assistants that score only the tokens of some clusters.

use std::sync::Arc;

use kernels::backend::{Backend, RowsOp};
use kernels::cpu::{Cpu, CpuConfig};
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::{Model, load_assistant, load_target};
use schemas::gguf::Plan;

const N_CTX: usize = 64;
const N_CLUSTER: u32 = 37;
const N_USED: u32 = 5;
const SIZE: usize = fixtures::N_VOCAB / N_CLUSTER as usize;

fn context(backend: &Arc<Cpu>, model: Model<Cpu>) -> Context<Cpu> {
    let cache = CacheConfig {
        n_seq: 1,
        n_ctx: N_CTX,
        n_rollback: 0,
        types: CacheTypes::F32,
    };
    let sizes = ContextConfig {
        cache,
        n_batch: N_CTX,
        n_outputs: 1,
    };
    Context::new(Arc::clone(backend), model, sizes).unwrap()
}

/// The center of a cluster is the embedding of its first token, so its score is that token's logit.
#[test]
fn the_best_clusters_are_scored() {
    let backend = Arc::new(Cpu::new(CpuConfig::default()).unwrap());
    for target in fixtures::all() {
        let Some(whole) = fixtures::assistants(&target).into_iter().next() else {
            continue;
        };
        let clustered = fixtures::clustered(&whole, N_CLUSTER, N_USED);
        let load = |draft: &Plan| load_assistant(&*backend, draft, &target).unwrap();
        let (all, some) = (load(&whole), load(&clustered));
        // A step reads five of 37 clusters, and the centers.
        assert!(some.pass_bytes < all.pass_bytes);

        let mut trunk = context(&backend, load_target(&*backend, &target).unwrap());
        let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 251).collect();
        let mut batch = Batch::default();
        batch.push(0, 0, &prompt, Outputs::None);
        trunk.forward(&batch, None);
        let width = trunk.model().hparams.n_embd as usize;
        let mut hidden = Backend::buffer(&*backend, width);
        backend.copy_rows(trunk.carried(), prompt.len() - 1, &mut hidden, 0, width, 1);
        let (mut all, mut some) = (context(&backend, all), context(&backend, some));
        for token in [3, 77, 200] {
            let mut batch = Batch::default();
            batch.push(0, prompt.len() as u32, &[token], Outputs::All);
            all.run_beside(&mut trunk, &batch, &hidden);
            some.run_beside(&mut trunk, &batch, &hidden);
            let logits = all.download_logits().to_vec();
            let found = some.download_logits().to_vec();
            let tokens = some.cluster_tokens().expect("has clusters");
            assert_eq!(found.len(), SIZE * N_USED as usize);
            let token = |column: usize| tokens.token(0, column as u32) as usize;
            for (column, &found) in found.iter().enumerate() {
                assert_eq!(found, logits[token(column)], "column {column}");
            }
            // First tokens of the chosen clusters, best first; all other first tokens score less.
            let chosen: Vec<usize> = (0..found.len()).step_by(SIZE).map(token).collect();
            let first = (0..fixtures::N_VOCAB).step_by(SIZE);
            let mut first: Vec<usize> = first.map(|row| row * 101 % fixtures::N_VOCAB).collect();
            first.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            assert_eq!(chosen, first[..N_USED as usize]);
        }
    }
}
