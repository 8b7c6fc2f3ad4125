//! Damage of assistants, which read the target's keys and values, and of their target, a Gemma 4: the bundled one, scoring
//! all tokens or the tokens of some clusters.

use schemas::arch::{CENTROIDS, POST_PROJECTION, PRE_PROJECTION, ROPE_FREQS, TOKEN_ORDERING, keys};
use schemas::gguf::Value;
use schemas::report::FitCause;

use super::edit::{add_noise, each, edit, noise, swap};
use super::kinds::Finder::{self, Acceptance, Baseline, Fit, Nothing, OtherText};
use super::kinds::{Draft, Files, Kind, of};

const fn assistant(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Assistant, name, found_by, damage)
}

const fn clusters(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Clusters, name, found_by, damage)
}

const PER_LAYER_TABLE: &str = "per_layer_token_embd.weight";

/// Sets a key after `gemma4-assistant.`.
fn set(files: &mut Files, key: &str, value: impl Into<Value>) {
    let metadata = &mut files.assistant.metadata;
    metadata.set(format!("gemma4-assistant.{key}"), value);
}

/// Changes the projection of a token's embedding and the hidden state before it.
fn fusion(files: &mut Files, change: impl FnOnce(&mut [f32], usize)) {
    edit(&mut files.assistant, PRE_PROJECTION, change);
}

fn is_matrix(name: &str) -> bool {
    name.starts_with("blk.") && !name.contains("norm") && !name.contains("scale")
}

pub(super) fn all() -> Vec<Kind> {
    vec![
        assistant("assistant: nothing", Nothing, |_| {}),
        assistant("assistant: noise of 1 %", Nothing, |f| {
            each(&mut f.assistant, is_matrix, |x, _| add_noise(x, 0.01, 20))
        }),
        assistant("assistant: untrained", Acceptance, |f| {
            each(&mut f.assistant, is_matrix, |x, _| noise(x, 21))
        }),
        assistant("assistant: fusion zero", Fit(FitCause::Zero), |f| {
            fusion(f, |x, _| x.fill(0.0))
        }),
        assistant(
            "assistant: embedding half of the fusion zero",
            Fit(FitCause::DeadPart),
            |f| {
                fusion(f, |x, w| {
                    x.chunks_mut(w).for_each(|row| row[..w / 2].fill(0.0))
                })
            },
        ),
        assistant(
            "assistant: hidden half of the fusion zero",
            Fit(FitCause::DeadPart),
            |f| {
                fusion(f, |x, w| {
                    x.chunks_mut(w).for_each(|row| row[w / 2..].fill(0.0))
                })
            },
        ),
        assistant("assistant: halves of the fusion swapped", Acceptance, |f| {
            fusion(f, |x, w| {
                x.chunks_mut(w).for_each(|row| row.rotate_left(w / 2))
            })
        }),
        assistant("assistant: fusion untrained", Acceptance, |f| {
            fusion(f, |x, _| noise(x, 22))
        }),
        assistant(
            "assistant: projection to the next step zero",
            Fit(FitCause::Zero),
            |f| edit(&mut f.assistant, POST_PROJECTION, |x, _| x.fill(0.0)),
        ),
        assistant(
            "assistant: projection to the next step untrained",
            Baseline,
            |f| edit(&mut f.assistant, POST_PROJECTION, |x, _| noise(x, 23)),
        ),
        assistant("assistant: layers swapped", Baseline, |f| {
            let names = super::edit::names(&f.assistant, |name| name.starts_with("blk.0."));
            for name in names {
                swap(&mut f.assistant, &name, &name.replace("blk.0.", "blk.1."));
            }
        }),
        assistant("assistant: another rope base", Baseline, |f| {
            set(f, keys::ROPE_FREQ_BASE_SWA, 100.0f32)
        }),
        assistant("assistant: a window of 4 tokens", Baseline, |f| {
            set(f, keys::SLIDING_WINDOW, 4u32)
        }),
        assistant("gemma4: rows of the padding token zero", Nothing, |f| {
            each(
                &mut f.gemma4,
                |name| name.ends_with("token_embd.weight"),
                |x, w| x[..w].fill(0.0),
            )
        }),
        assistant(
            "gemma4: embeddings for each layer zero",
            Fit(FitCause::Zero),
            |f| edit(&mut f.gemma4, PER_LAYER_TABLE, |x, _| x.fill(0.0)),
        ),
        assistant("gemma4: every pair of elements turns", OtherText, |f| {
            edit(&mut f.gemma4, ROPE_FREQS, |x, _| x.fill(1.0))
        }),
        clusters("clusters: nothing", Nothing, |_| {}),
        clusters("clusters: centers zero", Fit(FitCause::Zero), |f| {
            edit(&mut f.clusters, CENTROIDS, |x, _| x.fill(0.0))
        }),
        clusters("clusters: centers one row down", Acceptance, |f| {
            edit(&mut f.clusters, CENTROIDS, |x, w| x.rotate_right(w))
        }),
        clusters("clusters: tokens of the first half last", Acceptance, |f| {
            let plan = &mut f.clusters;
            let tensor = plan.tensors.iter_mut().find(|t| t.name == TOKEN_ORDERING);
            let tensor = tensor.expect("the draft has clusters");
            let mut bytes = tensor.read_all().unwrap();
            let middle = bytes.len() / 2;
            bytes.rotate_left(middle);
            super::edit::set_bytes(tensor, bytes);
        }),
    ]
}
