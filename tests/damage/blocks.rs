//! Damage of drafts that propose a block of tokens: the bundled DFlash draft, and a random DSpark draft for
//! what only such drafts have.

use schemas::arch::{CONFIDENCE, ENC_OUTPUT_NORM, FC, MARKOV_W1, MARKOV_W2, keys};
use schemas::gguf::{Array, Plan, Value};
use schemas::report::FitCause;

use super::edit::{add_noise, each, edit, noise, swap};
use super::kinds::Finder::{self, Acceptance, Baseline, Fit, Nothing, Refused};
use super::kinds::{Draft, Files, Kind, of};

const fn dflash(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Dflash, name, found_by, damage)
}

const fn dspark(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Dspark, name, found_by, damage)
}

/// Sets a key after `dflash.`.
fn set(plan: &mut Plan, key: &str, value: impl Into<Value>) {
    plan.metadata.set(format!("dflash.{key}"), value);
}

fn fusion(files: &mut Files, change: impl FnOnce(&mut [f32], usize)) {
    edit(&mut files.dflash, FC, change);
}

fn taps(files: &mut Files, layers: [i32; 3]) {
    let layers = Value::Array(Array::I32(layers.to_vec()));
    set(&mut files.dflash, keys::TARGET_LAYERS, layers);
}

fn is_matrix(name: &str) -> bool {
    name.starts_with("blk.") && !name.contains("norm")
}

pub(super) fn all() -> Vec<Kind> {
    vec![
        dflash("dflash: nothing", Nothing, |_| {}),
        dflash("dflash: noise of 1 %", Nothing, |f| {
            each(&mut f.dflash, is_matrix, |x, _| add_noise(x, 0.01, 10))
        }),
        dflash("dflash: untrained", Acceptance, |f| {
            each(&mut f.dflash, is_matrix, |x, _| noise(x, 11))
        }),
        dflash("dflash: fusion zero", Fit(FitCause::Zero), |f| {
            fusion(f, |x, _| x.fill(0.0))
        }),
        dflash(
            "dflash: a third of the fusion zero",
            Fit(FitCause::DeadPart),
            |f| {
                fusion(f, |x, w| {
                    x.chunks_mut(w).for_each(|row| row[..w / 3].fill(0.0))
                })
            },
        ),
        dflash("dflash: fusion untrained", Acceptance, |f| {
            fusion(f, |x, _| noise(x, 12))
        }),
        dflash(
            "dflash: norm of the fusion zero",
            Fit(FitCause::Zero),
            |f| edit(&mut f.dflash, ENC_OUTPUT_NORM, |x, _| x.fill(0.0)),
        ),
        dflash(
            "dflash: the layers before those of the target",
            Baseline,
            |f| taps(f, [0, 1, 2]),
        ),
        dflash(
            "dflash: the layers after those of the target",
            Baseline,
            |f| taps(f, [2, 3, 4]),
        ),
        dflash(
            "dflash: layers of the target in another order",
            Baseline,
            |f| taps(f, [3, 1, 2]),
        ),
        dflash(
            "dflash: a layer that the target lacks",
            Refused("target_layers"),
            |f| taps(f, [1, 2, 9]),
        ),
        dflash("dflash: blocks of 2", Baseline, |f| {
            set(&mut f.dflash, keys::BLOCK_SIZE, 2u32)
        }),
        dflash("dflash: blocks of 1", Refused("block_size"), |f| {
            set(&mut f.dflash, keys::BLOCK_SIZE, 1u32)
        }),
        dflash("dflash: blocks of 16", Nothing, |f| {
            set(&mut f.dflash, keys::BLOCK_SIZE, 16u32)
        }),
        dflash("dflash: another mask token", Acceptance, |f| {
            f.dflash.metadata.set(keys::MASK_TOKEN_ID, 2046u32)
        }),
        dflash("dflash: a mask token of texts", Acceptance, |f| {
            f.dflash.metadata.set(keys::MASK_TOKEN_ID, 300u32)
        }),
        dflash(
            "dflash: a mask token out of range",
            Refused("mask_token_id"),
            |f| f.dflash.metadata.set(keys::MASK_TOKEN_ID, 2048u32),
        ),
        dflash("dflash: causal", Nothing, |f| {
            set(&mut f.dflash, keys::CAUSAL, true)
        }),
        dflash("dflash: another rope base", Acceptance, |f| {
            set(&mut f.dflash, keys::ROPE_FREQ_BASE, 100.0f32)
        }),
        dflash("dflash: layers swapped", Acceptance, |f| {
            let names = super::edit::names(&f.dflash, |name| name.starts_with("blk.0."));
            for name in names {
                swap(&mut f.dflash, &name, &name.replace("blk.0.", "blk.1."));
            }
        }),
        dspark("dspark: nothing", Nothing, |_| {}),
        dspark(
            "dspark: embedding of the Markov head zero",
            Fit(FitCause::Zero),
            |f| edit(&mut f.dspark, MARKOV_W1, |x, _| x.fill(0.0)),
        ),
        dspark(
            "dspark: bias of the Markov head zero",
            Fit(FitCause::Zero),
            |f| edit(&mut f.dspark, MARKOV_W2, |x, _| x.fill(0.0)),
        ),
        dspark("dspark: Markov head one row down", Acceptance, |f| {
            edit(&mut f.dspark, MARKOV_W1, |x, w| x.rotate_right(w))
        }),
        dspark("dspark: the first row proposes nothing", Baseline, |f| {
            set(&mut f.dspark, keys::SAMPLE_FROM_ANCHOR, false)
        }),
        dspark("dspark: confidence head zero", Fit(FitCause::Zero), |f| {
            edit(&mut f.dspark, CONFIDENCE, |x, _| x.fill(0.0))
        }),
    ]
}
