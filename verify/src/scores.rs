//! Scores of the target for given texts, position by position; later models are compared with them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use kernels::backend::Backend;
use kernels::distribution::Distribution;
use runner::batch::{Batch, Outputs, TextSlice};
use runner::context::Context;
use schemas::report::{PromptScores, Spread, TargetScores};

use crate::error::Error;

/// Tokens of one pass, all of which have logits.
pub(crate) const N_ROWS: usize = 64;
/// Most likely tokens kept for each position. The others are one number in a comparison, so eight
/// are precise enough.
const N_TOP: usize = 8;
/// Bytes of one entry: id and log-probability.
const TOP_BYTES: usize = 8;

/// Evaluates a text as the context's only sequence and calls `visit` with the logits after each
/// token.
///
/// # Errors
/// The device failed.
pub(crate) fn each_row<B: Backend>(
    context: &mut Context<B>,
    text: TextSlice<'_>,
    mut visit: impl FnMut(usize, &[f32]),
) -> Result<(), Error> {
    context.truncate(0, 0);
    let n_vocab = context.model().hparams.n_vocab as usize;
    let (mut at, mut left) = (0, text);
    while !left.is_empty() {
        let chunk;
        (chunk, left) = left.split_at(left.len().min(N_ROWS));
        let mut batch = Batch::default();
        batch.push_slice(0, at as u32, chunk, Outputs::All);
        context.forward(&batch, None);
        context.check()?;
        let rows = context.logits().chunks_exact(n_vocab);
        for (position, row) in (at..).zip(rows) {
            visit(position, row);
        }
        at += chunk.len();
    }
    Ok(())
}

/// The most likely next tokens of one position, in descending order, with their log-probabilities.
pub(crate) type Likeliest = Vec<(u32, f32)>;

fn likeliest(row: &[f32]) -> Likeliest {
    let sum = Distribution::of(row).log_sum;
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    let by_logit = |a: &u32, b: &u32| {
        let (x, y) = (row[*a as usize], row[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    let n = N_TOP.min(ids.len());
    if n < ids.len() {
        ids.select_nth_unstable_by(n, by_logit);
        ids.truncate(n);
    }
    ids.sort_by(by_logit);
    let log = |id: u32| (f64::from(row[id as usize]) - sum) as f32;
    ids.into_iter().map(|id| (id, log(id))).collect()
}

/// A text to score.
pub(crate) struct Scored<'a> {
    /// Name of the prompt.
    pub(crate) id: &'a str,
    /// The prompt and the generated tokens.
    pub(crate) tokens: Vec<u32>,
    /// Length of the prompt.
    pub(crate) n_prompt: usize,
}

/// The first logit that is NaN or infinite.
pub(crate) struct NotFinite {
    pub(crate) prompt_id: String,
    pub(crate) position: usize,
    pub(crate) token: usize,
    pub(crate) logit: f32,
}

/// Scores texts and finds logits that are NaN or infinite; `speed` is the target's without drafts.
///
/// # Errors
/// The device failed.
pub(crate) fn score<B: Backend>(
    context: &mut Context<B>,
    texts: Vec<Scored<'_>>,
    speed: Option<Spread>,
) -> Result<(TargetScores, Option<NotFinite>), Error> {
    let mut prompts = Vec::with_capacity(texts.len());
    let (mut n_scored, mut surprise) = (0u64, 0.0);
    let (mut n_rows, mut n_not_finite, mut first) = (0, 0, None);
    for Scored {
        id,
        tokens,
        n_prompt,
    } in texts
    {
        let mut bytes = Vec::with_capacity(tokens.len() * N_TOP * TOP_BYTES);
        each_row(context, tokens[..].into(), |position, row| {
            n_rows += 1;
            if let Some(token) = row.iter().position(|logit| !logit.is_finite()) {
                n_not_finite += 1;
                first.get_or_insert_with(|| NotFinite {
                    prompt_id: id.to_owned(),
                    position,
                    token,
                    logit: row[token],
                });
            }
            if position + 1 < n_prompt {
                surprise += Distribution::of(row).surprise(tokens[position + 1]);
                n_scored += 1;
            }
            for (id, log) in likeliest(row) {
                bytes.extend(id.to_le_bytes());
                bytes.extend(log.to_le_bytes());
            }
        })?;
        prompts.push(PromptScores {
            prompt_id: id.to_owned(),
            n_prompt_tokens: n_prompt as u64,
            tokens,
            likeliest: BASE64.encode(bytes),
        });
    }
    let n_vocab = context.model().hparams.n_vocab as usize;
    let scores = TargetScores {
        n_scored,
        perplexity: (n_scored > 0).then(|| (surprise / n_scored as f64).exp()),
        n_rows,
        n_not_finite,
        tokens_per_s: speed.map(|speed| speed.median),
        speed,
        n_top: N_TOP.min(n_vocab) as u32,
        prompts,
    };
    Ok((scores, first))
}

/// Decodes the kept tokens of each position of a scored prompt; `None` if their encoding is
/// invalid.
pub(crate) fn read_likeliest(scores: &PromptScores, n_top: u32) -> Option<Vec<Likeliest>> {
    let bytes = BASE64.decode(&scores.likeliest).ok()?;
    let row_bytes = TOP_BYTES.checked_mul(n_top as usize).filter(|&n| n > 0)?;
    if bytes.len() != row_bytes.checked_mul(scores.tokens.len())? {
        return None;
    }
    let row = |row: &[u8]| {
        let (entries, _) = row.as_chunks::<TOP_BYTES>();
        let entry = |&[a, b, c, d, e, f, g, h]: &[u8; TOP_BYTES]| {
            let id = u32::from_le_bytes([a, b, c, d]);
            (id, f32::from_le_bytes([e, f, g, h]))
        };
        entries.iter().map(entry).collect()
    };
    Some(bytes.chunks_exact(row_bytes).map(row).collect())
}

/// Returns the Kullback-Leibler divergence, in nats, of a row of logits from the distribution of
/// the kept tokens. All other tokens count as one.
pub(crate) fn divergence(kept: &Likeliest, row: &[f32]) -> f64 {
    let sum = Distribution::of(row).log_sum;
    let (mut kl, mut rest, mut rest_now) = (0.0, 1.0, 1.0);
    for &(id, log) in kept {
        let Some(&logit) = row.get(id as usize) else {
            continue;
        };
        let (log, log_now) = (f64::from(log), f64::from(logit) - sum);
        kl += log.exp() * (log - log_now);
        rest -= log.exp();
        rest_now -= log_now.exp();
    }
    // Rounding can leave a small remainder instead of zero.
    if rest > 1e-6 {
        kl += rest * (rest / rest_now.max(1e-9)).ln();
    }
    kl.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again() {
        let row: Vec<f32> = (0..50).map(|i| ((i * 37) % 50) as f32 / 5.0).collect();
        let kept = likeliest(&row);
        assert_eq!(kept.len(), N_TOP);
        assert!(kept.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert_eq!(row[kept[0].0 as usize], 49.0 / 5.0);
        let mut bytes = Vec::new();
        for (id, log) in &kept {
            bytes.extend(id.to_le_bytes());
            bytes.extend(log.to_le_bytes());
        }
        let mut scores = PromptScores {
            prompt_id: "a".to_owned(),
            n_prompt_tokens: 1,
            tokens: vec![3],
            likeliest: BASE64.encode(bytes),
        };
        assert_eq!(read_likeliest(&scores, 8), Some(vec![kept]));
        assert_eq!(read_likeliest(&scores, 7), None);
        scores.likeliest.push('!');
        assert_eq!(read_likeliest(&scores, 8), None);
    }

    /// Computed by hand: p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2); with the first token kept and
    /// the rest as one, 1/2 ln 2 + 1/2 ln (1/2 / 3/4).
    #[test]
    fn divergence_by_hand() {
        let q = [0.25f32.ln(), 0.25f32.ln(), 0.5f32.ln()];
        let kept = vec![(0, 0.5f32.ln())];
        let expected = 0.5 * 2f64.ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((divergence(&kept, &q) - expected).abs() < 1e-6);
        let p = [0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln()];
        assert!(divergence(&likeliest(&p), &p) < 1e-6);
    }
}
