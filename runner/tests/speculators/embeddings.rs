//! Prompts with embeddings in some rows, as for parts of an image.

use std::sync::Arc;

use runner::batch::{Embedding, NO_TOKEN};
use runner::speculate::{Completion, Policy, Request};
use schemas::arch::Hparams;

use crate::setup::{Drafters, Family, Kind, N_PREDICT, assert_same, decode, request, requests};

fn hparams(family: &Family) -> Hparams {
    Hparams::from_plan(&family.plan).unwrap()
}

/// Returns the row of a token in the target's table, scaled as input of the first layer.
fn embedding(family: &Family, token: u32) -> Embedding {
    let tensors = &family.plan.tensors;
    let table = tensors
        .iter()
        .find(|t| t.name == "token_embd.weight")
        .unwrap();
    let n_embd = table.shape[0] as usize;
    let bytes = table.read_all().unwrap();
    let row = bytes.chunks_exact(4 * n_embd).nth(token as usize).unwrap();
    let values = row.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x));
    let scale = match hparams(family).arch.scaled_embeddings {
        true => (n_embd as f32).sqrt(),
        false => 1.0,
    };
    values.map(|x| x * scale).collect::<Arc<[f32]>>()
}

/// Replaces every third token of a prompt by its embedding, including the last one.
fn embedded(family: &Family, prompt: &Request) -> Request {
    let mut prompt = prompt.clone();
    for token in prompt.tokens.iter_mut().rev().step_by(3) {
        prompt.embeddings.insert(0, embedding(family, *token));
        *token = NO_TOKEN;
    }
    prompt
}

fn counts(completions: &[Completion]) -> Vec<Vec<u64>> {
    let lengths = completions.iter().map(|c| c.tally.accepted_lengths.clone());
    lengths.collect()
}

#[test]
fn an_embedding_of_the_table_is_its_token() {
    for family in Family::all() {
        let tokens = requests(N_PREDICT);
        let rows: Vec<Request> = tokens.iter().map(|r| embedded(&family, r)).collect();
        let mut plain = family.driver(Vec::new(), Policy::First, 1, 3);
        let expected = decode(&mut plain, &tokens, 0.0);
        let of_rows = decode(&mut plain, &rows, 0.0);
        let hparams = hparams(&family);
        // Given embeddings lack a token's embeddings for each layer.
        if hparams.n_embd_per_layer == 0 {
            assert_same(family.name(), &expected, &of_rows);
        }
        for kind in family.kinds() {
            for n_seq in [1, 5] {
                let run = |requests: &[Request]| {
                    let drafters: Drafters = vec![family.speculator(kind, n_seq, 3)];
                    let mut driver = family.driver(drafters, Policy::First, n_seq, 3);
                    decode(&mut driver, requests, 0.0)
                };
                let drafted = run(&rows);
                let name = format!("{} {kind:?}", family.name());
                assert_same(&name, &of_rows, &drafted);
                // These drafts use the same embedding table, unscaled.
                let same_table = [Kind::Itself, Kind::Mtp, Kind::Eagle3(1)].contains(&kind);
                if same_table && !hparams.arch.scaled_embeddings {
                    assert_eq!(counts(&run(&tokens)), counts(&drafted), "{name}");
                }
            }
        }
    }
}

#[test]
fn embeddings_have_to_fit() {
    let family = Family::of(fixtures::all().next().unwrap());
    let mut driver = family.driver(Vec::new(), Policy::First, 1, 0);
    let row = embedding(&family, 7);
    let wide: Embedding = [&row[..], &row[..]].concat().into();
    let cases = [
        (
            vec![1, NO_TOKEN],
            vec![],
            "embeddings of [] elements, expected 1 of 64 elements each",
        ),
        (
            vec![1, 2],
            vec![row],
            "embeddings of [64] elements, expected 0 of 64 elements each",
        ),
        (
            vec![NO_TOKEN],
            vec![wide],
            "embeddings of [128] elements, expected 1 of 64 elements each",
        ),
    ];
    for (tokens, embeddings, message) in cases {
        let request = Request {
            embeddings,
            ..request(tokens, 4)
        };
        let result = crate::setup::endless(0.0, |config| driver.join(0, 0, &request, config));
        let found = result.unwrap_err().to_string();
        assert!(found.ends_with(message), "{found}");
    }
}
