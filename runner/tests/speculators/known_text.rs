//! Drafts at every position of a known text, and drafts of a text that starts there.

use std::rc::Rc;

use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{KnownText, Policy};

use crate::recorder::Recorder;
use crate::setup::{Family, Kind, endless, request, requests};

const N_MAX: usize = 4;
const N_DRAFTS: usize = 12;

/// A draft depends on the text before it alone: not on earlier drafts, nor on the passes that evaluated the text.
#[test]
fn drafts_do_not_depend_on_the_passes_before_them() {
    for family in Family::all() {
        let prompt = requests(N_DRAFTS + N_MAX).remove(2);
        let n_prompt = prompt.tokens.len();
        let mut alone = family.driver(Vec::new(), Policy::First, 1, 0);
        let completions = endless(0.0, |config| {
            alone
                .decode(std::slice::from_ref(&prompt), config)
                .unwrap()
                .0
        });
        let text = [&prompt.tokens[..], &completions[0].tokens].concat();
        let needs_no_learning = |kind: &Kind| {
            let is_model = kind.spec_type().name().starts_with("draft-");
            is_model && *kind != Kind::Translated
        };
        for kind in family.kinds().into_iter().filter(needs_no_learning) {
            let name = format!("{} {kind:?}", family.name());
            let drafter = family.speculator(kind, 1, N_MAX);
            let mut driver = family.driver(vec![drafter], Policy::First, 1, N_MAX);
            let known = KnownText {
                id: name.clone(),
                tokens: text.clone(),
                embeddings: Vec::new(),
                n_prompt,
            };
            let sampler = Sampler::new(SampleConfig::GREEDY).unwrap();
            let found = driver.draft_known(&[known], sampler, &|| false).unwrap();
            for (i, expected) in found[0].drafts[..N_DRAFTS].iter().enumerate() {
                let recorder = Recorder {
                    speculator: family.speculator(kind, 1, N_MAX),
                    drafts: Rc::default(),
                };
                let drafts = Rc::clone(&recorder.drafts);
                let mut driver = family.driver(vec![Box::new(recorder)], Policy::First, 1, N_MAX);
                // Enough tokens for a whole draft.
                let start = request(text[..n_prompt + i].to_vec(), N_MAX + 2);
                endless(0.0, |config| {
                    driver.join(0, 0, &start, config).unwrap();
                    driver.round(config).unwrap();
                });
                assert_eq!(drafts.borrow()[0], *expected, "{name}, token {i}");
            }
        }
    }
}
