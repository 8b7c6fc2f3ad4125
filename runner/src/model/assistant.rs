//! Assistants: drafts whose layers attend to the keys and values of their target. Their output may have only
//! the tokens of some clusters, which the hidden state chooses.

use kernels::backend::{Backend, ExpertInput, Gating, Routing};
use schemas::arch::{Hparams, LayerKind, TOKEN_ORDERING};

use crate::error::ModelError;

use super::matrix::{Matrix, MatrixStack};
use super::scratch::Scratch;
use super::weights::Weights;

/// The parts of an assistant after its layers.
pub(super) struct Assistant<B: Backend> {
    /// To the hidden state that the next step reads: (n_embd_target, n_embd)
    pub(super) projection: Matrix<B>,
    /// Output of chosen clusters; without it, all tokens have logits.
    pub(super) clusters: Option<Clusters<B>>,
}

/// The output head, cluster by cluster. The model's own head chooses clusters as a router chooses experts.
pub(super) struct Clusters<B: Backend> {
    /// The rows of the head of each cluster: (n_cluster, size, n_embd)
    rows: MatrixStack<B>,
    routing: Routing,
    /// All tokens, cluster by cluster.
    tokens: Vec<u32>,
}

impl<B: Backend> Clusters<B> {
    /// Loads the clusters, if the file has them.
    pub(super) fn load(weights: &mut Weights<'_, B>) -> Result<Option<Self>, ModelError> {
        let hparams = weights.hparams.clone();
        let Some(own) = hparams.assistant.filter(|own| own.n_centroid > 0) else {
            return Ok(None);
        };
        let (n_cluster, n_used) = (own.n_centroid as usize, own.n_centroid_used as usize);
        let tokens = weights.permutation(TOKEN_ORDERING, hparams.n_vocab)?;
        Ok(Some(Clusters {
            rows: weights.need_clusters("token_embd.weight", &tokens, n_cluster, n_used)?,
            routing: Routing {
                n_expert: n_cluster,
                n_used,
                n_group: 1,
                n_group_used: 1,
                gating: Gating::Softmax,
                normalised: false,
                scale: 1.0,
            },
            tokens,
        }))
    }

    /// Returns the number of tokens of a cluster.
    fn size(&self) -> usize {
        self.tokens.len() / self.routing.n_expert
    }

    /// Computes the logits of the chosen clusters' tokens from `n` rows of `s.wanted`, and the scores of all
    /// clusters in `s.logits`, into `s.logits`.
    pub(super) fn forward(&self, backend: &B, head: &Matrix<B>, n: usize, s: &mut Scratch<B>) {
        let c = &mut s.clusters;
        head.multiply(backend, &s.wanted, n, &mut c.scores);
        backend.route(&c.scores, None, &self.routing, n, &mut c.routes);
        let per_row = ExpertInput::PerRow;
        (self.rows).multiply(backend, &c.routes, &s.wanted, per_row, n, &mut s.logits);
    }

    /// Returns the tokens of the logits that the last pass computed for `n` rows.
    pub(super) fn tokens(&self, backend: &B, n: usize, s: &Scratch<B>) -> ClusterTokens<'_> {
        ClusterTokens {
            chosen: backend.download_experts(&s.clusters.routes, n),
            n_used: self.routing.n_used,
            size: self.size(),
            tokens: &self.tokens,
        }
    }
}

/// The tokens of logits whose clusters differ by row.
pub struct ClusterTokens<'a> {
    chosen: Vec<u32>,
    n_used: usize,
    size: usize,
    tokens: &'a [u32],
}

impl ClusterTokens<'_> {
    /// Returns the token of a column of a row's logits.
    pub fn token(&self, row: usize, column: u32) -> u32 {
        let (place, i) = (column as usize / self.size, column as usize % self.size);
        let cluster = self.chosen[row * self.n_used + place] as usize;
        self.tokens[cluster * self.size + i]
    }
}

/// Returns for each block of an assistant the block of the target whose keys and values it attends to: the last
/// one of the same kind that has any.
///
/// # Errors
/// The target has no such block, or its heads have other sizes.
pub(crate) fn lent_blocks(assistant: &Hparams, target: &Hparams) -> Result<Vec<u32>, ModelError> {
    let lender = |block: u32| {
        let slides = assistant.window(block).is_some();
        let own = assistant.of_block(block);
        let mut blocks = (0..target.n_layer).rev();
        let is_alike = |&other: &u32| {
            target.has_kv(other)
                && target.layers[other as usize] == LayerKind::Attention
                && target.window(other).is_some() == slides
        };
        let found = blocks.find(is_alike);
        let shape = |h: &Hparams| [h.head_dim, h.n_head_kv];
        match found.map(|other| (other, target.of_block(other))) {
            Some((other, theirs)) if shape(&theirs) == shape(&own) => Ok(other),
            found => Err(ModelError::LentHeads {
                block,
                head_dim: own.head_dim,
                n_head_kv: own.n_head_kv,
                found: found.map(|(block, theirs)| (block, shape(&theirs))),
            }),
        }
    };
    (0..assistant.n_layer).map(lender).collect()
}
