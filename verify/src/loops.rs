//! Detection of texts that repeat themselves. A looping text is easy to draft for, so its
//! acceptance rate does not measure a drafter.

use schemas::report::LoopReport;

/// Maximum length of the repeated n-gram.
const MAX_GRAM: usize = 64;
/// Minimum number of consecutive repetitions of a loop.
const MIN_REPEATS: usize = 3;
/// Minimum length of a loop in tokens: a row of dots or spaces does not count.
const MIN_TOKENS: usize = 16;
/// Share of a text that a loop must exceed for the text to count as looping.
const MOST: f64 = 0.5;

/// Returns the longest passage that repeats one n-gram; of equally long ones that of the shortest
/// n-gram.
pub fn longest_loop(tokens: &[u32]) -> Option<LoopReport> {
    let mut best: Option<(usize, usize)> = None;
    for n in 1..=MAX_GRAM.min(tokens.len() / MIN_REPEATS) {
        // Number of consecutive tokens that equal the one `n` positions before.
        let mut run = 0;
        for at in n..tokens.len() {
            run = if tokens[at] == tokens[at - n] {
                run + 1
            } else {
                0
            };
            let length = run + n;
            let is_loop = length >= (MIN_REPEATS * n).max(MIN_TOKENS);
            if run > 0 && is_loop && best.is_none_or(|(_, longest)| length > longest) {
                best = Some((n, length));
            }
        }
    }
    best.map(|(n, length)| LoopReport {
        n_gram: n as u64,
        n_tokens: length as u64,
        share: length as f64 / tokens.len() as f64,
    })
}

/// True if the loop fills most of its text.
pub fn fills_most(found: &LoopReport) -> bool {
    found.share > MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tokens: &[u32]) -> Option<(u64, u64)> {
        longest_loop(tokens).map(|found| (found.n_gram, found.n_tokens))
    }

    #[test]
    fn the_shortest_n_gram_of_the_longest_passage_is_named() {
        let text: Vec<u32> = (0..40)
            .map(|i| if i < 10 { 100 + i } else { i % 3 })
            .collect();
        assert_eq!(found(&text), Some((3, 30)));
        let loops = longest_loop(&text).unwrap();
        assert_eq!(loops.share, 0.75);
        assert!(fills_most(&loops));
        // A single different token ends a passage.
        let mut broken = text.clone();
        broken[25] = 7;
        assert_eq!(found(&broken), None);
        assert_eq!(found(&[5; 20]), Some((1, 20)));
    }

    #[test]
    fn other_texts_have_none() {
        let counting: Vec<u32> = (0..200).collect();
        assert_eq!(found(&counting), None);
        // Lists repeat their markers, but not the text between them.
        let list: Vec<u32> = (0..200).map(|i| if i % 4 == 0 { 1 } else { i }).collect();
        assert_eq!(found(&list), None);
        // Two occurrences are a quotation.
        let twice: Vec<u32> = (0..60).map(|i| i % 30).collect();
        assert_eq!(found(&twice), None);
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[1, 1]), None);
    }
}
