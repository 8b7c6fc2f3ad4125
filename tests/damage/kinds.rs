//! The kinds of damage; each is a change of healthy files.

use runner::speculate::SpecType;
use schemas::arch::nextn::EH_PROJ;
use schemas::gguf::{Array, Plan, Value};
use schemas::report::FitCause;
use schemas::vocab::write_d2t;

use super::edit::{
    add_noise, copy_tensor, each, edit, ids, names, noise, permute, rename, scale, set_u32, swap,
};
use super::{assistants, blocks, chained, streams};

/// The bundled target and its drafts besides its own head, and random models whose drafts it has no example of.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) target: Plan,
    pub(super) draft: Plan,
    pub(super) eagle3: Plan,
    pub(super) dflash: Plan,
    /// The target of `dspark`.
    pub(super) qwen3: Plan,
    pub(super) dspark: Plan,
    /// Two chained heads.
    pub(super) step35: Plan,
    /// Three chained heads.
    pub(super) mimo2: Plan,
    /// The target of `deepseek4_head`.
    pub(super) deepseek4: Plan,
    /// A head that reads several residual streams.
    pub(super) deepseek4_head: Plan,
    /// The target of `assistant` and `clusters`.
    pub(super) gemma4: Plan,
    pub(super) assistant: Plan,
    /// The assistant, with clusters of tokens.
    pub(super) clusters: Plan,
}

/// A draft of one of the targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Draft {
    Mtp,
    Simple,
    Eagle3,
    Dflash,
    Dspark,
    Step35,
    Mimo2,
    DeepSeek4,
    Assistant,
    Clusters,
}

impl Draft {
    pub(super) const ALL: [Draft; 10] = [
        Draft::Mtp,
        Draft::Simple,
        Draft::Eagle3,
        Draft::Dflash,
        Draft::Dspark,
        Draft::Step35,
        Draft::Mimo2,
        Draft::DeepSeek4,
        Draft::Assistant,
        Draft::Clusters,
    ];

    pub(super) fn spec_type(self) -> SpecType {
        match self {
            Draft::Mtp
            | Draft::Step35
            | Draft::Mimo2
            | Draft::DeepSeek4
            | Draft::Assistant
            | Draft::Clusters => SpecType::DraftMtp,
            Draft::Simple => SpecType::DraftSimple,
            Draft::Eagle3 => SpecType::DraftEagle3,
            Draft::Dflash => SpecType::DraftDflash,
            Draft::Dspark => SpecType::DraftDspark,
        }
    }

    pub(super) fn target(self, files: &Files) -> &Plan {
        match self {
            Draft::Dspark => &files.qwen3,
            Draft::Step35 => &files.step35,
            Draft::Mimo2 => &files.mimo2,
            Draft::DeepSeek4 => &files.deepseek4,
            Draft::Assistant | Draft::Clusters => &files.gemma4,
            _ => &files.target,
        }
    }

    /// Returns the draft's own file, if the target's file lacks it.
    pub(super) fn file(self, files: &Files) -> Option<&Plan> {
        match self {
            Draft::Simple => Some(&files.draft),
            Draft::Eagle3 => Some(&files.eagle3),
            Draft::Dflash => Some(&files.dflash),
            Draft::Dspark => Some(&files.dspark),
            Draft::DeepSeek4 => Some(&files.deepseek4_head),
            Draft::Assistant => Some(&files.assistant),
            Draft::Clusters => Some(&files.clusters),
            Draft::Mtp | Draft::Step35 | Draft::Mimo2 => None,
        }
    }
}

/// The check that detects the damage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finder {
    /// The files cannot be loaded; the error contains this text.
    Refused(&'static str),
    /// The preflight check.
    Fit(FitCause),
    /// The floor of the acceptance rate.
    Acceptance,
    /// The comparison with an earlier report.
    Baseline,
    /// Only the text comparison with an earlier report of a file that should generate the same text.
    OtherText,
    /// No check, and nothing is lost.
    Nothing,
}

/// One kind of damage.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The draft of the run.
    pub(super) draft: Draft,
    pub(super) found_by: Finder,
    pub(super) damage: fn(&mut Files),
}

/// Tensor name prefix of the head's block.
const HEAD: &str = "blk.4.";
const FC: &str = "fc.weight";
const D2T: &str = "d2t";

use Finder::{Acceptance, Baseline, Fit, Nothing, OtherText, Refused};

pub(super) const fn of(
    draft: Draft,
    name: &'static str,
    found_by: Finder,
    damage: fn(&mut Files),
) -> Kind {
    Kind {
        name,
        draft,
        found_by,
        damage,
    }
}

const fn mtp(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Mtp, name, found_by, damage)
}

const fn draft(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Simple, name, found_by, damage)
}

const fn eagle3(name: &'static str, found_by: Finder, damage: fn(&mut Files)) -> Kind {
    of(Draft::Eagle3, name, found_by, damage)
}

/// Changes a tensor of the MTP head; the closure gets the values and the row length.
fn head(files: &mut Files, name: &str, change: impl FnOnce(&mut [f32], usize)) {
    edit(&mut files.target, &format!("{HEAD}{name}"), change);
}

fn projection(files: &mut Files, change: impl FnOnce(&mut [f32], usize)) {
    head(files, EH_PROJ, change);
}

/// Returns one half of each row of the projection: 0 for the embedding, 1 for the hidden state.
fn half(x: &mut [f32], width: usize, which: usize) -> impl Iterator<Item = &mut f32> {
    let n = width / 2;
    let rows = x.chunks_mut(width);
    rows.flat_map(move |row| &mut row[which * n..(which + 1) * n])
}

/// Returns true for tensors of the head other than its norms.
fn is_head_matrix(name: &str) -> bool {
    name.starts_with(HEAD) && !name.contains("norm")
}

fn is_head_norm(name: &str) -> bool {
    name.starts_with(HEAD) && name.contains("norm")
}

/// Returns true for trunk norms that the family's checkpoints store as w - 1.
fn is_trunk_norm(name: &str) -> bool {
    !name.starts_with(HEAD) && name.contains("norm") && !name.contains("ssm")
}

fn is_trunk_matrix(name: &str) -> bool {
    let rows = [
        "attn_qkv",
        "attn_gate",
        "ssm_out",
        "attn_q.",
        "attn_k.",
        "attn_v.",
        "attn_output",
        "ffn_",
    ];
    !name.starts_with(HEAD) && rows.iter().any(|row| name.contains(row))
}

/// Permutes query and key rows from halves to interleaved pairs, the other RoPE layout.
fn other_rope_layout(plan: &mut Plan, block: &str, head_dim: usize) {
    for name in ["attn_q.weight", "attn_k.weight"] {
        edit(plan, &format!("{block}{name}"), |x, width| {
            permute(x, width, |row| {
                let (head, i) = (row / head_dim, row % head_dim);
                head * head_dim + (i % 2) * head_dim / 2 + i / 2
            });
        });
    }
}

fn set_ids(files: &mut Files, change: impl FnOnce(&mut Vec<i64>)) {
    let tensor = files.eagle3.tensors.iter_mut().find(|t| t.name == D2T);
    let tensor = tensor.expect("the draft has a map");
    let mut all = ids(tensor);
    change(&mut all);
    let mut bytes = Vec::new();
    all.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
    super::edit::set_bytes(tensor, bytes);
}

/// Returns all kinds of damage, grouped by the damaged part.
pub(super) fn all() -> Vec<Kind> {
    [
        heads(),
        trunks(),
        keys(),
        drafts(),
        eagle3s(),
        blocks::all(),
        chained::all(),
        streams::all(),
        assistants::all(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn heads() -> Vec<Kind> {
    vec![
        mtp("nothing", Nothing, |_| {}),
        mtp("head: noise of 1 %", Nothing, |f| {
            each(&mut f.target, is_head_matrix, |x, _| add_noise(x, 0.01, 1))
        }),
        mtp("head: noise of 5 %", Nothing, |f| {
            each(&mut f.target, is_head_matrix, |x, _| add_noise(x, 0.05, 1))
        }),
        mtp("head: noise of 100 %", Acceptance, |f| {
            each(&mut f.target, is_head_matrix, |x, _| add_noise(x, 1.0, 1))
        }),
        mtp("head: projection zero", Fit(FitCause::Zero), |f| {
            projection(f, |x, _| x.fill(0.0))
        }),
        mtp("head: embedding half zero", Fit(FitCause::DeadPart), |f| {
            projection(f, |x, w| half(x, w, 0).for_each(|x| *x = 0.0))
        }),
        mtp("head: hidden half zero", Fit(FitCause::DeadPart), |f| {
            projection(f, |x, w| half(x, w, 1).for_each(|x| *x = 0.0))
        }),
        mtp("head: embedding half / 100", Acceptance, |f| {
            projection(f, |x, w| half(x, w, 0).for_each(|x| *x /= 100.0))
        }),
        mtp("head: hidden half / 100", Acceptance, |f| {
            projection(f, |x, w| half(x, w, 1).for_each(|x| *x /= 100.0))
        }),
        mtp("head: halves swapped", Acceptance, |f| {
            projection(f, |x, w| {
                x.chunks_mut(w).for_each(|row| row.rotate_left(w / 2))
            })
        }),
        mtp("head: projection's rows shuffled", Acceptance, |f| {
            projection(f, |x, w| permute(x, w, |row| (row * 97 + 5) % 256))
        }),
        mtp("head: projection's columns shuffled", Acceptance, |f| {
            projection(f, |x, w| {
                x.chunks_mut(w)
                    .for_each(|row| permute(row, 1, |i| (i * 97 + 5) % 512))
            })
        }),
        mtp("head: projection negated", Acceptance, |f| {
            projection(f, |x, _| scale(x, -1.0))
        }),
        mtp("head: projection untrained", Acceptance, |f| {
            projection(f, |x, _| noise(x, 2))
        }),
        mtp("head: embedding half untrained", Acceptance, |f| {
            projection(f, |x, w| {
                let mut other = x.to_vec();
                noise(&mut other, 3);
                half(x, w, 0)
                    .zip(half(&mut other, w, 0))
                    .for_each(|(x, y)| *x = *y);
            })
        }),
        mtp("head: hidden half untrained", Acceptance, |f| {
            projection(f, |x, w| {
                let mut other = x.to_vec();
                noise(&mut other, 3);
                half(x, w, 1)
                    .zip(half(&mut other, w, 1))
                    .for_each(|(x, y)| *x = *y);
            })
        }),
        mtp("head: projection times 4", Baseline, |f| {
            projection(f, |x, _| scale(x, 4.0))
        }),
        mtp("head: projection over 4", Nothing, |f| {
            projection(f, |x, _| scale(x, 0.25))
        }),
        mtp(
            "head: projection without its scale (times 256)",
            Fit(FitCause::Scale),
            |f| projection(f, |x, _| scale(x, 256.0)),
        ),
        mtp(
            "head: feed-forward without its scale (times 256)",
            Fit(FitCause::Scale),
            |f| head(f, "ffn_down.weight", |x, _| scale(x, 256.0)),
        ),
        mtp(
            "head: a row of the projection lost",
            Fit(FitCause::LostRows),
            |f| projection(f, |x, w| x[7 * w..8 * w].fill(0.0)),
        ),
        mtp("head: untrained", Acceptance, |f| {
            each(&mut f.target, is_head_matrix, |x, _| noise(x, 4))
        }),
        mtp(
            "head: of another trunk (its width permuted)",
            Acceptance,
            |f| {
                let basis = |i: usize| (i * 101 + 17) % 256;
                each(
                    &mut f.target,
                    |name| {
                        name.starts_with(HEAD)
                            && name.contains("norm.weight")
                            && !name.contains("_q_")
                            && !name.contains("_k_")
                    },
                    |x, _| permute(x, 1, basis),
                );
                for name in [
                    "attn_q.weight",
                    "attn_k.weight",
                    "attn_v.weight",
                    "ffn_gate.weight",
                    "ffn_up.weight",
                ] {
                    head(f, name, |x, w| {
                        x.chunks_mut(w).for_each(|row| permute(row, 1, basis))
                    });
                }
                for name in ["attn_output.weight", "ffn_down.weight"] {
                    head(f, name, |x, w| permute(x, w, basis));
                }
                projection(f, |x, w| {
                    permute(x, w, basis);
                    x.chunks_mut(w / 2).for_each(|half| permute(half, 1, basis));
                });
            },
        ),
        mtp("head: a trunk layer in its place", Acceptance, |f| {
            for name in names(&f.target, |name| name.starts_with("blk.3.")) {
                copy_tensor(&mut f.target, &name, &name.replace("blk.3.", HEAD));
            }
        }),
        mtp("head: attention's output zero", Fit(FitCause::Zero), |f| {
            head(f, "attn_output.weight", |x, _| x.fill(0.0))
        }),
        mtp("head: feed-forward zero", Fit(FitCause::Zero), |f| {
            head(f, "ffn_down.weight", |x, _| x.fill(0.0))
        }),
        mtp("head: gate and up swapped", Baseline, |f| {
            swap(
                &mut f.target,
                "blk.4.ffn_gate.weight",
                "blk.4.ffn_up.weight",
            )
        }),
        mtp("head: keys and values swapped", Acceptance, |f| {
            swap(&mut f.target, "blk.4.attn_k.weight", "blk.4.attn_v.weight")
        }),
        mtp("head: another rope layout", Acceptance, |f| {
            other_rope_layout(&mut f.target, HEAD, 64)
        }),
        mtp(
            "head: norms without the +1 offset",
            Fit(FitCause::NormOffset),
            |f| {
                each(&mut f.target, is_head_norm, |x, _| {
                    x.iter_mut().for_each(|x| *x -= 1.0)
                })
            },
        ),
        mtp("head: norms with the +1 offset twice", Baseline, |f| {
            each(&mut f.target, is_head_norm, |x, _| {
                x.iter_mut().for_each(|x| *x += 1.0)
            })
        }),
        mtp("head: norms of its halves swapped", Nothing, |f| {
            swap(
                &mut f.target,
                "blk.4.nextn.enorm.weight",
                "blk.4.nextn.hnorm.weight",
            )
        }),
        mtp("head: last norm zero", Fit(FitCause::Zero), |f| {
            head(f, "nextn.shared_head_norm.weight", |x, _| x.fill(0.0))
        }),
        mtp("head: constant projection", Fit(FitCause::Constant), |f| {
            projection(f, |x, _| x.fill(0.01))
        }),
        mtp("head: a NaN", Refused("NaN in block"), |f| {
            projection(f, |x, _| x[1000] = f32::NAN)
        }),
    ]
}

fn trunks() -> Vec<Kind> {
    vec![
        mtp("trunk: a tensor zero", Fit(FitCause::Zero), |f| {
            edit(&mut f.target, "blk.1.ffn_down.weight", |x, _| x.fill(0.0))
        }),
        mtp("trunk: a row lost", Fit(FitCause::LostRows), |f| {
            edit(&mut f.target, "blk.1.attn_qkv.weight", |x, w| {
                x[300 * w..301 * w].fill(0.0)
            })
        }),
        mtp(
            "trunk: a row of the feed-forward block lost",
            Fit(FitCause::LostRows),
            |f| {
                edit(&mut f.target, "blk.2.ffn_up.weight", |x, w| {
                    x[..w].fill(0.0)
                })
            },
        ),
        mtp(
            "trunk: the embedding of a used token lost",
            Fit(FitCause::LostRows),
            |f| {
                edit(&mut f.target, "token_embd.weight", |x, w| {
                    x[262 * w..275 * w].fill(0.0)
                })
            },
        ),
        mtp("trunk: embeddings one row down", Baseline, |f| {
            edit(&mut f.target, "token_embd.weight", |x, w| x.rotate_right(w))
        }),
        mtp(
            "trunk: a scale dropped (times 256)",
            Fit(FitCause::Scale),
            |f| edit(&mut f.target, "blk.2.ffn_up.weight", |x, _| scale(x, 256.0)),
        ),
        mtp(
            "trunk: all scales dropped (times 4096)",
            Fit(FitCause::Packed),
            |f| each(&mut f.target, is_trunk_matrix, |x, _| scale(x, 4096.0)),
        ),
        mtp("trunk: one tensor times 4", Baseline, |f| {
            edit(&mut f.target, "blk.2.ffn_up.weight", |x, _| scale(x, 4.0))
        }),
        mtp(
            "trunk: a norm without the +1 offset",
            Fit(FitCause::NormOffset),
            |f| {
                edit(&mut f.target, "blk.2.attn_norm.weight", |x, _| {
                    x.iter_mut().for_each(|x| *x -= 1.0)
                })
            },
        ),
        mtp(
            "trunk: all norms without the +1 offset",
            Fit(FitCause::NormOffset),
            |f| {
                each(&mut f.target, is_trunk_norm, |x, _| {
                    x.iter_mut().for_each(|x| *x -= 1.0)
                })
            },
        ),
        mtp(
            "trunk: all norms with the +1 offset twice",
            Acceptance,
            |f| {
                each(
                    &mut f.target,
                    |n| is_trunk_norm(n) || is_head_norm(n),
                    |x, _| x.iter_mut().for_each(|x| *x += 1.0),
                )
            },
        ),
        mtp("trunk: noise of 1 %", Nothing, |f| {
            each(&mut f.target, is_trunk_matrix, |x, _| add_noise(x, 0.01, 5))
        }),
        mtp("trunk: noise of 30 %", Baseline, |f| {
            each(&mut f.target, is_trunk_matrix, |x, _| add_noise(x, 0.3, 5))
        }),
        mtp("trunk: two layers swapped", Acceptance, |f| {
            for name in names(&f.target, |name| name.starts_with("blk.0.")) {
                swap(&mut f.target, &name, &name.replace("blk.0.", "blk.1."));
            }
        }),
        mtp("trunk: a layer of another", Baseline, |f| {
            for name in names(&f.target, |name| name.starts_with("blk.0.")) {
                copy_tensor(&mut f.target, &name, &name.replace("blk.0.", "blk.2."));
            }
        }),
        mtp(
            "trunk: decay with the wrong sign",
            Fit(FitCause::Scale),
            |f| edit(&mut f.target, "blk.1.ssm_a", |x, _| scale(x, -1.0)),
        ),
        mtp("trunk: taps of a convolution reversed", Baseline, |f| {
            edit(&mut f.target, "blk.1.ssm_conv1d.weight", |x, w| {
                x.chunks_mut(w).for_each(<[f32]>::reverse)
            })
        }),
        mtp("trunk: value heads in another order", Baseline, |f| {
            edit(&mut f.target, "blk.1.ssm_out.weight", |x, w| {
                x.chunks_mut(w).for_each(|row| row.rotate_left(w / 2))
            })
        }),
        mtp("trunk: infinity", Refused("infinity in block"), |f| {
            edit(&mut f.target, "blk.0.ffn_up.weight", |x, _| {
                x[77] = f32::INFINITY
            })
        }),
    ]
}

fn keys() -> Vec<Kind> {
    vec![
        mtp(
            "keys: the head is not declared",
            Fit(FitCause::Layout),
            |f| drop(f.target.metadata.remove("qwen35.nextn_predict_layers")),
        ),
        mtp("keys: two heads declared", Fit(FitCause::Layout), |f| {
            set_u32(f, "qwen35.nextn_predict_layers", 2)
        }),
        mtp(
            "keys: one block too few",
            Refused("recurrent_layers"),
            |f| set_u32(f, "qwen35.block_count", 4),
        ),
        mtp(
            "keys: one block too many",
            Refused("recurrent_layers"),
            |f| set_u32(f, "qwen35.block_count", 6),
        ),
        mtp(
            "keys: other key heads than the tensors have",
            Refused("attn_k.weight"),
            |f| set_u32(f, "qwen35.attention.head_count_kv", 4),
        ),
        mtp("keys: another width", Refused("shape"), |f| {
            set_u32(f, "qwen35.embedding_length", 512)
        }),
        mtp("keys: another rope base", Baseline, |f| {
            f.target
                .metadata
                .set("qwen35.rope.freq_base", Value::F32(100.0))
        }),
        mtp("keys: half the rotated elements", OtherText, |f| {
            set_u32(f, "qwen35.rope.dimension_count", 16)
        }),
        mtp("keys: another epsilon", Acceptance, |f| {
            f.target
                .metadata
                .set("qwen35.attention.layer_norm_rms_epsilon", Value::F32(0.1))
        }),
        mtp("tensors: the head lacks a norm", Refused("enorm"), |f| {
            f.target
                .tensors
                .retain(|t| t.name != "blk.4.nextn.enorm.weight")
        }),
        mtp(
            "tensors: the head counts from 0",
            Fit(FitCause::Layout),
            |f| {
                f.target
                    .tensors
                    .retain(|t| t.layer() == Some(4) || t.layer().is_none());
                rename(&mut f.target, HEAD, "blk.0.");
            },
        ),
        mtp(
            "tensors: one too many",
            Refused("blk.1.surplus.weight"),
            |f| {
                let mut surplus = f
                    .target
                    .tensor("blk.1.ffn_up.weight")
                    .expect("it is there")
                    .clone();
                surplus.name = "blk.1.surplus.weight".to_owned();
                f.target.tensors.push(surplus);
            },
        ),
    ]
}

fn drafts() -> Vec<Kind> {
    vec![
        draft("draft: nothing", Nothing, |_| {}),
        draft("draft: noise of 1 %", Nothing, |f| {
            each(
                &mut f.draft,
                |n| n.starts_with("blk.") && !n.contains("norm"),
                |x, _| add_noise(x, 0.01, 6),
            )
        }),
        draft(
            "draft: two tokens of its table swapped",
            Refused("first token that differs"),
            |f| {
                let Some(Value::Array(Array::String(tokens))) =
                    f.draft.metadata.get_mut("tokenizer.ggml.tokens")
                else {
                    panic!("tokens are strings");
                };
                let mut texts: Vec<_> = tokens.iter().map(ToOwned::to_owned).collect();
                texts.swap(300, 301);
                *tokens = texts.iter().collect();
            },
        ),
        draft("draft: embeddings one row down", Acceptance, |f| {
            edit(&mut f.draft, "token_embd.weight", |x, w| x.rotate_right(w))
        }),
        draft("draft: another rope layout", Baseline, |f| {
            other_rope_layout(&mut f.draft, "blk.0.", 64)
        }),
        draft("draft: untrained", Acceptance, |f| {
            each(
                &mut f.draft,
                |n| n.starts_with("blk.") && !n.contains("norm"),
                |x, _| noise(x, 7),
            )
        }),
        draft("draft: feed-forward zero", Fit(FitCause::Zero), |f| {
            edit(&mut f.draft, "blk.0.ffn_down.weight", |x, _| x.fill(0.0))
        }),
        draft(
            "draft: a scale dropped (times 4096)",
            Fit(FitCause::Scale),
            |f| {
                edit(&mut f.draft, "blk.0.ffn_down.weight", |x, _| {
                    scale(x, 4096.0)
                })
            },
        ),
        draft("draft: noise of 50 %", Baseline, |f| {
            each(
                &mut f.draft,
                |n| n.starts_with("blk.") && !n.contains("norm"),
                |x, _| add_noise(x, 0.5, 6),
            )
        }),
    ]
}

fn eagle3s() -> Vec<Kind> {
    vec![
        eagle3("eagle3: nothing", Nothing, |_| {}),
        eagle3("eagle3: noise of 1 %", Nothing, |f| {
            edit(&mut f.eagle3, FC, |x, _| add_noise(x, 0.01, 8))
        }),
        eagle3("eagle3: d2t shifted", Acceptance, |f| {
            set_ids(f, |ids| ids.rotate_left(1))
        }),
        eagle3("eagle3: d2t one too high", Fit(FitCause::DraftVocab), |f| {
            set_ids(f, |ids| {
                ids.iter_mut().for_each(|id| *id = (*id + 1).min(2047))
            })
        }),
        eagle3("eagle3: d2t reversed", Acceptance, |f| {
            set_ids(f, |ids| ids.reverse())
        }),
        eagle3(
            "eagle3: d2t with a duplicate",
            Fit(FitCause::DraftVocab),
            |f| set_ids(f, |ids| ids[9] = ids[8]),
        ),
        eagle3("eagle3: d2t out of range", Fit(FitCause::DraftVocab), |f| {
            set_ids(f, |ids| ids[9] = 5000)
        }),
        eagle3("eagle3: d2t of offsets", Fit(FitCause::DraftVocab), |f| {
            set_ids(f, |ids| (0..).zip(ids).for_each(|(row, id)| *id -= row))
        }),
        eagle3(
            "eagle3: d2t with row numbers added",
            Fit(FitCause::DraftVocab),
            |f| set_ids(f, |ids| (0..).zip(ids).for_each(|(row, id)| *id += row)),
        ),
        eagle3("eagle3: d2t of the first tokens", Acceptance, |f| {
            let n = ids(f.eagle3.tensor(D2T).expect("the draft has a map")).len() as u32;
            let ids: Vec<u32> = (0..n).collect();
            let at = f
                .eagle3
                .tensors
                .iter()
                .position(|t| t.name == D2T)
                .expect("it has a map");
            f.eagle3.tensors[at] = write_d2t(D2T, &ids);
        }),
        eagle3("eagle3: fusion zero", Fit(FitCause::Zero), |f| {
            edit(&mut f.eagle3, FC, |x, _| x.fill(0.0))
        }),
        eagle3(
            "eagle3: a third of the fusion zero",
            Fit(FitCause::DeadPart),
            |f| {
                edit(&mut f.eagle3, FC, |x, w| {
                    x.chunks_mut(w).for_each(|row| row[..w / 3].fill(0.0))
                })
            },
        ),
        eagle3(
            "eagle3: thirds of the fusion in another order",
            Baseline,
            |f| {
                edit(&mut f.eagle3, FC, |x, w| {
                    x.chunks_mut(w).for_each(|row| row.rotate_left(w / 3))
                })
            },
        ),
        eagle3("eagle3: fusion untrained", Acceptance, |f| {
            edit(&mut f.eagle3, FC, |x, _| noise(x, 9))
        }),
        eagle3("eagle3: other layers of the target", Baseline, |f| {
            f.eagle3.metadata.set(
                "eagle3.target_layers",
                Value::Array(Array::U32(vec![0, 1, 2])),
            )
        }),
        eagle3("eagle3: norms of its halves swapped", Baseline, |f| {
            swap(
                &mut f.eagle3,
                "blk.0.attn_norm.weight",
                "blk.0.attn_norm_2.weight",
            )
        }),
    ]
}
