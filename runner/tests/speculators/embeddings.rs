//! Prompts with embeddings in some rows, as for parts of an image.

use runner::batch::{Embedding, NO_TOKEN};
use runner::speculate::{Completion, Policy, Request, Stop};

use crate::setup::{Drafters, Family, Kind, N_PREDICT, assert_same, decode, request, requests};

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
    let scale = match family.hparams().arch.scaled_embeddings {
        true => (n_embd as f32).sqrt(),
        false => 1.0,
    };
    values.map(|x| x * scale).collect()
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
        let hparams = family.hparams();
        // Given embeddings lack a token's embeddings for each layer, and the token by which layers choose experts.
        let needs_token = hparams.n_embd_per_layer > 0 || hparams.compressed.n_hash_layer > 0;
        if !needs_token {
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
                if same_table && !needs_token && !hparams.arch.scaled_embeddings {
                    assert_eq!(counts(&run(&tokens)), counts(&drafted), "{name}");
                }
            }
        }
    }
}

/// Replaces the third to the eighth token of a prompt by their embeddings, at the coordinates that `at` gives to
/// each of these rows.
fn with_image(family: &Family, prompt: &Request, at: impl Fn(u32) -> [u32; 3]) -> Request {
    let mut prompt = prompt.clone();
    let rows = prompt.tokens.iter_mut().zip(0..).skip(2).take(6);
    for (token, row) in rows {
        prompt
            .embeddings
            .push(embedding(family, *token).at(at(row)));
        *token = NO_TOKEN;
    }
    prompt
}

/// An image of two by three parts changes the logits of models whose positions have several coordinates. Drafts
/// see the same coordinates, for any number of sequences and after rollbacks; other models refuse them.
#[test]
fn parts_of_images_have_coordinates() {
    let image = |row: u32| [2, 2 + (row - 2) / 3, 2 + (row - 2) % 3];
    for family in Family::all() {
        let tokens: Vec<Request> = requests(N_PREDICT)
            .into_iter()
            .filter(|prompt| prompt.tokens.len() > 9)
            .collect();
        let placed = |at: &dyn Fn(u32) -> [u32; 3]| -> Vec<Request> {
            tokens.iter().map(|r| with_image(&family, r, at)).collect()
        };
        let images = placed(&image);
        let mut plain = family.driver(Vec::new(), Policy::First, 1, 3);
        if family.hparams().rope_sections.is_none() {
            let result = crate::setup::endless(0.0, |config| plain.join(0, 0, &images[0], config));
            let found = result.unwrap_err().to_string();
            assert!(found.contains("positions with one coordinate"), "{found}");
            continue;
        }
        let expected = decode(&mut plain, &images, 0.0);
        let of_tokens = decode(&mut plain, &tokens, 0.0);
        let own_indices = placed(&|row| [row; 3]);
        assert_same(
            family.name(),
            &of_tokens,
            &decode(&mut plain, &own_indices, 0.0),
        );
        for (image, text) in expected.iter().zip(&of_tokens) {
            assert_ne!(image.hashes[0], text.hashes[0], "{}", family.name());
        }
        for kind in family.kinds() {
            for n_seq in [1, 5] {
                let drafters: Drafters = vec![family.speculator(kind, n_seq, 3)];
                let mut driver = family.driver(drafters, Policy::First, n_seq, 1);
                let drafted = decode(&mut driver, &images, 0.0);
                let name = format!("{} {kind:?}", family.name());
                assert_same(&name, &expected, &drafted);
                // The target itself is always right if it sees the same prompt.
                for completion in drafted.iter().filter(|_| kind == Kind::Itself) {
                    let tally = &completion.tally;
                    let all = tally.n_accepted() == tally.n_drafted();
                    assert!(all || completion.stop == Stop::EndOfText, "{name}");
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
    let wide: Embedding = row.iter().chain(row.iter()).copied().collect();
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
