//! One position of a text: the base's distribution over the next token, and another model's.

use kernels::distribution::Distribution;

use super::for_each_row;

/// Tokens below this log-probability in the base do not count.
const LEAST_LOG: f64 = -16.0;

/// The base's distribution over the next token.
pub(super) struct BaseRow {
    /// Logit of each token.
    logits: Vec<f32>,
    /// The number to subtract from a logit to get a log-probability.
    log_sum: f64,
    /// The likeliest token, the first of several.
    top: usize,
}

impl BaseRow {
    /// Returns a row with these log-probabilities.
    pub(super) fn of_logs(logs: Vec<f32>) -> BaseRow {
        BaseRow {
            top: top(&logs),
            logits: logs,
            log_sum: 0.0,
        }
    }

    fn distribution(&self) -> Distribution<'_> {
        Distribution {
            logits: &self.logits,
            log_sum: self.log_sum,
        }
    }

    /// Negative log-probability of a token.
    pub(super) fn surprise(&self, token: u32) -> f64 {
        self.distribution().surprise(token)
    }
}

/// Scores of another model at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowScore {
    /// Negative log-probability of the next token of the text.
    pub(super) surprise: f64,
    /// Divergence from the base.
    pub(super) kld: f64,
    /// Probability of the next token minus the base's.
    pub(super) delta_p: f64,
    /// True if both have the same likeliest token.
    pub(super) same_top: bool,
}

/// Returns the first position of the largest number.
fn top(row: &[f32]) -> usize {
    let mut best = 0;
    for (i, &x) in row.iter().enumerate() {
        if x > row[best] {
            best = i;
        }
    }
    best
}

/// Returns the distributions of the first rows of logits.
pub(super) fn base_rows(logits: &[f32], n_vocab: usize, n_rows: usize) -> Vec<BaseRow> {
    for_each_row(n_rows, |i| {
        let row = &logits[i * n_vocab..][..n_vocab];
        BaseRow {
            log_sum: Distribution::of(row).log_sum,
            top: top(row),
            logits: row.to_vec(),
        }
    })
}

/// Compares rows of logits with the base's; `next` has the tokens of the text that follow.
pub(super) fn score_rows(
    base: &[BaseRow],
    logits: &[f32],
    n_vocab: usize,
    next: &[u32],
) -> Vec<RowScore> {
    for_each_row(base.len(), |i| {
        score(&base[i], &logits[i * n_vocab..][..n_vocab], next[i])
    })
}

fn score(base: &BaseRow, logits: &[f32], next: u32) -> RowScore {
    let other = Distribution::of(logits);
    let surprise = other.surprise(next);
    RowScore {
        surprise,
        kld: other.divergence_from(&base.distribution(), LEAST_LOG),
        delta_p: (-surprise).exp() - (-base.surprise(next)).exp(),
        same_top: top(logits) == base.top,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tokens with the probabilities 3/4 and 1/4, against 1/2 and 1/2.
    #[test]
    fn a_row_by_hand() {
        let base = base_rows(&[3f32.ln(), 0.0], 2, 1);
        assert!((base[0].surprise(1) - 4f64.ln()).abs() < 1e-6);
        let found = score_rows(&base, &[0.0, 0.0], 2, &[1])[0];
        let expected = 0.75 * (0.75f64 / 0.5).ln() + 0.25 * (0.25f64 / 0.5).ln();
        assert!((found.kld - expected).abs() < 1e-6, "{found:?}");
        assert!((found.surprise - 2f64.ln()).abs() < 1e-6);
        assert!((found.delta_p - 0.25).abs() < 1e-6);
        assert!(found.same_top);
    }

    #[test]
    fn equal_rows_do_not_diverge() {
        let logits: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32 * 0.1).collect();
        let found = score_rows(&base_rows(&logits, 1000, 1), &logits, 1000, &[5])[0];
        assert_eq!((found.kld, found.delta_p), (0.0, 0.0));
    }
}
