//! Log-probabilities of tokens from rows of logits.

use crate::job::TokenLogprob;

/// Returns the log-probability of a token in a row of logits (n_vocab), and those of the `n_top` most
/// likely tokens. Computed as `logit - logsumexp(row)` in double precision, so a token has the same
/// value alone and in the list.
pub(crate) fn token_logprob(row: &[f32], id: u32, n_top: usize) -> TokenLogprob {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    // JSON has no infinity; llama-server prints the smallest float in its place.
    let logprob = |logit: f32| ((f64::from(logit) - log_sum) as f32).max(f32::MIN);
    TokenLogprob {
        id,
        logprob: logprob(row[id as usize]),
        top: most_likely(row, n_top)
            .into_iter()
            .map(|id| (id, logprob(row[id as usize])))
            .collect(),
    }
}

/// Returns the ids of the `n` largest logits, largest first; of equal ones the smallest id first.
fn most_likely(row: &[f32], n: usize) -> Vec<u32> {
    if n == 0 {
        return Vec::new();
    }
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    let by_logit = |&a: &u32, &b: &u32| {
        let (x, y) = (row[a as usize], row[b as usize]);
        y.total_cmp(&x).then(a.cmp(&b))
    };
    if n < ids.len() {
        ids.select_nth_unstable_by(n - 1, by_logit);
        ids.truncate(n);
    }
    ids.sort_unstable_by(by_logit);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one() {
        let row = [0.5f32, 3.0, -1.0, 3.0, f32::NEG_INFINITY];
        let all = token_logprob(&row, 0, 5);
        let sum: f64 = all.top.iter().map(|&(_, x)| f64::from(x).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let ids: Vec<u32> = all.top.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [1, 3, 0, 2, 4]);
        assert_eq!(all.logprob, all.top[2].1);
        assert!(all.top[4].1.is_finite());
        assert_eq!(token_logprob(&row, 1, 2).top.len(), 2);
        assert_eq!(token_logprob(&row, 1, 0).top, []);
    }
}
