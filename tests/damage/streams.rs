//! Damage of a head that reads several residual streams, and of its target: a random DeepSeek V4 whose drafts are
//! accepted. The head is a file of its own, with its own mixer of the streams. Its projection makes the drafts; its
//! layer is random, so a damaged layer loses little, and every stream leads to the same tokens.

use schemas::arch::TOKEN_EXPERTS;
use schemas::arch::nextn::EH_PROJ;
use schemas::gguf::Plan;
use schemas::report::FitCause;

use super::edit::{add_noise, each, edit, noise, set_bytes, swap};
use super::kinds::Finder::{self, Acceptance, Baseline, Fit, Nothing, OtherText, Refused};
use super::kinds::{Draft, Files, Kind, of};

/// Block of the head.
const HEAD: &str = "blk.3.";
/// Tensors of the mixer before the output.
const MIXER: [&str; 3] = [
    "output_hc_fn.weight",
    "output_hc_base.weight",
    "output_hc_scale.weight",
];

const fn streams(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::DeepSeek4, name, found_by, damage)
}

/// Changes a tensor of the head's block; the closure gets the values and the row length.
fn head(files: &mut Files, name: &str, change: impl FnOnce(&mut [f32], usize)) {
    edit(&mut files.deepseek4_head, &format!("{HEAD}{name}"), change);
}

fn projection(files: &mut Files, change: impl FnOnce(&mut [f32], usize)) {
    head(files, EH_PROJ, change);
}

fn swap_in_head(files: &mut Files, a: &str, b: &str) {
    let [a, b] = [a, b].map(|name| format!("{HEAD}{name}"));
    swap(&mut files.deepseek4_head, &a, &b);
}

fn set(plan: &mut Plan, name: &str, bytes: Vec<u8>) {
    let tensor = plan.tensors.iter_mut().find(|tensor| tensor.name == name);
    set_bytes(tensor.expect("the file has the tensor"), bytes);
}

/// Changes the target's table of the experts of each token.
fn change_table(files: &mut Files, change: impl FnOnce(&mut Vec<u8>)) {
    let name = format!("blk.0.{TOKEN_EXPERTS}");
    let table = files
        .deepseek4
        .tensor(&name)
        .expect("the first layer has a table");
    let mut bytes = table.read_all().unwrap();
    change(&mut bytes);
    set(&mut files.deepseek4, &name, bytes);
}

fn is_matrix(name: &str) -> bool {
    name.starts_with(HEAD) && !name.contains("norm")
}

pub(super) fn all() -> Vec<Kind> {
    let mut kinds = heads();
    kinds.extend(targets());
    kinds
}

fn heads() -> Vec<Kind> {
    vec![
        streams("streams: nothing", Nothing, |_| {}),
        streams("streams: noise of 1 %", Nothing, |f| {
            each(&mut f.deepseek4_head, is_matrix, |x, _| {
                add_noise(x, 0.01, 14)
            })
        }),
        streams("streams: untrained", Acceptance, |f| {
            each(&mut f.deepseek4_head, is_matrix, |x, _| noise(x, 15))
        }),
        streams("streams: projection zero", Fit(FitCause::Zero), |f| {
            projection(f, |x, _| x.fill(0.0))
        }),
        streams(
            "streams: embedding half zero",
            Fit(FitCause::DeadPart),
            |f| {
                projection(f, |x, w| {
                    x.chunks_mut(w).for_each(|row| row[..w / 2].fill(0.0))
                })
            },
        ),
        streams("streams: hidden half zero", Fit(FitCause::DeadPart), |f| {
            projection(f, |x, w| {
                x.chunks_mut(w).for_each(|row| row[w / 2..].fill(0.0))
            })
        }),
        streams("streams: halves swapped", Acceptance, |f| {
            projection(f, |x, w| {
                x.chunks_mut(w).for_each(|row| row.rotate_left(w / 2))
            })
        }),
        streams("streams: norms of its halves swapped", Nothing, |f| {
            swap_in_head(f, "nextn.enorm.weight", "nextn.hnorm.weight")
        }),
        streams("streams: mixer of the target", Nothing, |f| {
            for name in MIXER {
                let bytes = f.deepseek4.tensor(name).expect("it has a mixer").read_all();
                set(&mut f.deepseek4_head, name, bytes.unwrap());
            }
        }),
        streams("streams: mixer zero", Fit(FitCause::Zero), |f| {
            edit(&mut f.deepseek4_head, MIXER[0], |x, _| x.fill(0.0))
        }),
        streams("streams: streams in another order", Nothing, |f| {
            head(f, "hc_attn_fn.weight", |x, w| {
                x.chunks_mut(w).for_each(|row| row.rotate_left(w / 4))
            })
        }),
        streams("streams: connections swapped", Nothing, |f| {
            for part in ["fn", "base", "scale"] {
                let [a, b] = ["attn", "ffn"].map(|of| format!("hc_{of}_{part}.weight"));
                swap_in_head(f, &a, &b);
            }
        }),
        streams("streams: a connection is silent", Baseline, |f| {
            head(f, "hc_ffn_base.weight", |x, _| x.fill(-100.0))
        }),
        streams(
            "streams: attention's output zero",
            Fit(FitCause::Zero),
            |f| head(f, "attn_output_b.weight", |x, _| x.fill(0.0)),
        ),
        streams("streams: two streams declared", Refused("shape"), |f| {
            f.deepseek4_head
                .metadata
                .set("deepseek4.hyper_connection.count", 2u32)
        }),
    ]
}

fn targets() -> Vec<Kind> {
    vec![
        streams(
            "streams: the target's mixer zero",
            Fit(FitCause::Zero),
            |f| edit(&mut f.deepseek4, MIXER[0], |x, _| x.fill(0.0)),
        ),
        streams(
            "streams: the target's compressor untrained",
            Baseline,
            |f| {
                edit(
                    &mut f.deepseek4,
                    "blk.1.attn_compressor_kv.weight",
                    |x, _| noise(x, 16),
                )
            },
        ),
        streams("streams: the target's indexer untrained", OtherText, |f| {
            edit(&mut f.deepseek4, "blk.1.indexer.attn_q_b.weight", |x, _| {
                noise(x, 17)
            })
        }),
        streams(
            "streams: the target's table of experts shifted",
            OtherText,
            |f| change_table(f, |bytes| bytes.rotate_right(8)),
        ),
        streams(
            "streams: an expert that the target lacks",
            Refused("expert"),
            |f| change_table(f, |bytes| bytes[0] = 9),
        ),
    ]
}
