//! EAGLE-3 drafts: logits of transformers for the reference draft, and acceptance of the bundled
//! one.

use std::path::PathBuf;
use std::sync::Arc;

use kernels::backend::{Backend, RowsOp};
use kernels::cpu::{Cpu, CpuConfig};
use runner::batch::{Batch, Outputs};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::{Model, load_eagle3, load_target};
use schemas::gguf::open;
use serde_json::Value;

use crate::run::{F32_CACHES, TOLERANCE, comma_separated, ids, read_npy};
use crate::util::{Dir, bundled, read_json, reference, specrun};

/// Target and draft.
fn convert(dir: &Dir, target: PathBuf, draft: PathBuf, outtype: &str) -> [PathBuf; 2] {
    let flags = ["--outtype", outtype];
    let folder = target.to_str().unwrap();
    let of_draft = [&flags[..], &["--target-model-dir", folder]].concat();
    [
        dir.convert(&target, "target.gguf", &flags),
        dir.convert(&draft, "draft.gguf", &of_draft),
    ]
}

fn reference_pair(dir: &Dir) -> [PathBuf; 2] {
    convert(dir, reference("qwen3"), reference("eagle3-qwen3"), "f32")
}

fn bundled_pair(dir: &Dir) -> [PathBuf; 2] {
    let (target, draft) = (bundled("tiny-qwen35-mtp"), bundled("tiny-eagle3"));
    convert(dir, target, draft, "bf16")
}

fn golden() -> Value {
    read_json(&reference("eagle3-qwen3").join("logits.json"))
}

pub(crate) fn context(backend: &Arc<Cpu>, model: Model<Cpu>, n: usize) -> Context<Cpu> {
    let sizes = ContextConfig {
        cache: CacheConfig {
            n_seq: 1,
            n_ctx: 2 * n,
            n_rollback: 0,
            types: CacheTypes::F32,
        },
        n_batch: n,
        n_outputs: n,
    };
    Context::new(Arc::clone(backend), model, sizes).unwrap()
}

#[track_caller]
pub(crate) fn assert_close(place: &str, found: f32, expected: &Value) {
    let difference = (f64::from(found) - expected.as_f64().unwrap()).abs();
    assert!(difference < TOLERANCE, "{place}: off by {difference:e}");
}

/// Compares every row after the prompt, and two more that are computed from the draft's own output.
#[test]
fn logits_are_those_of_transformers() {
    let dir = Dir::new();
    let golden = golden();
    let [target, draft] = reference_pair(&dir).map(|path| open(&path).unwrap());
    let config = CpuConfig {
        threads: 1,
        ..CpuConfig::default()
    };
    let backend = Arc::new(Cpu::new(config).unwrap());
    let prompt: Vec<u32> = ids(&golden["prompt"]).iter().map(|&id| id as u32).collect();
    let n = prompt.len();

    let (model, fusion) = load_eagle3(&*backend, &draft, &target).unwrap();
    let mut trunk = load_target(&*backend, &target).unwrap();
    let features = model.hparams.features.as_ref().expect("a draft has them");
    trunk.taps.clone_from(&features.layers);
    assert_eq!(
        serde_json::to_value(&trunk.taps).unwrap(),
        golden["target_layers"]
    );
    let mut trunk = context(&backend, trunk, n);
    let mut batch = Batch::default();
    batch.push(0, 0, &prompt, Outputs::None);
    trunk.forward(&batch, None);
    let room = |width: usize| Backend::buffer(&*backend, n * width);
    let n_embd = model.hparams.n_embd as usize;
    let mut fused = room(n_embd);
    let mut normed = room(features.width() as usize);
    fusion.forward(&backend, trunk.features(), n, &mut normed, &mut fused);

    let mut draft = context(&backend, model, n);
    let first = golden["first_token"].as_u64().unwrap() as u32;
    let mut batch = Batch::default();
    batch.push(0, 0, &[&prompt[1..], &[first]].concat(), Outputs::All);
    let mut logits = draft.forward(&batch, Some(&fused)).to_vec();
    // Autoregressive drafting: the input of each step is the output and the best token of the last row.
    let n_out = draft.model().n_out();
    let mut row = n - 1;
    for _ in 0..2 {
        let last = &logits[logits.len() - n_out..];
        let best = (0..n_out)
            .max_by(|&a, &b| last[a].total_cmp(&last[b]))
            .unwrap();
        let token = draft.model().token(best as u32);
        let backend = &*backend;
        backend.gather_rows(draft.carried(), n_embd, &[row], &mut fused);
        let mut batch = Batch::default();
        batch.push(0, draft.len(0), &[token], Outputs::All);
        logits.extend(draft.forward(&batch, Some(&fused)));
        row = 0;
    }

    let row_of =
        |token: u64| (0..n_out as u32).find(|&r| u64::from(draft.model().token(r)) == token);
    let logits: Vec<&[f32]> = logits.chunks_exact(n_out).collect();
    let rows = ["top", "chain_top"].iter().flat_map(|part| {
        let part = &golden[*part];
        let (ids, logits) = (part["ids"].as_array(), part["logits"].as_array());
        ids.unwrap().iter().zip(logits.unwrap())
    });
    let mut n_rows = 0;
    for (i, (tokens, expected)) in rows.enumerate() {
        for (token, expected) in ids(tokens).into_iter().zip(expected.as_array().unwrap()) {
            let row = row_of(token).expect("the draft knows the token") as usize;
            assert_close(&format!("row {i}, token {token}"), logits[i][row], expected);
        }
        n_rows += 1;
    }
    assert_eq!(n_rows, n + 2);
    // Tokens outside the draft vocabulary have a logit of minus infinity.
    let last = read_npy(&reference("eagle3-qwen3").join("last_logits.npy"));
    for (token, &expected) in (0..).zip(&last) {
        match row_of(token) {
            None => assert_eq!(expected, f32::NEG_INFINITY, "token {token}"),
            Some(row) => {
                let found = logits[n - 1][row as usize];
                assert_close(
                    &format!("token {token}"),
                    found,
                    &f64::from(expected).into(),
                );
            }
        }
    }
}

/// Drafted and accepted counts equal those of transformers; the speculator is detected
/// automatically.
#[test]
fn counts_are_those_of_transformers() {
    let dir = Dir::new();
    let [target, draft] = reference_pair(&dir);
    let golden = golden();
    for run in golden["speculation"].as_array().unwrap() {
        let n_max = run["n_max"].to_string();
        let generate = specrun("generate").arg("-m").arg(&target);
        let generate = generate.arg("-md").arg(&draft);
        let generate = generate
            .arg("--tokens")
            .arg(comma_separated(&golden["prompt"]));
        let n_predict = run["n_predict"].to_string();
        let flags = ["--spec-draft-n-max", &n_max, "-n", &n_predict];
        let report = generate.args(flags).args(F32_CACHES).json();
        assert_eq!(report["tokens"], run["tokens"], "{n_max}");
        let counters = &report["counters"];
        assert_eq!(counters["by_speculator"][0]["name"], "draft-eagle3");
        assert_eq!(counters["n_drafted"], run["draft_n"], "{n_max}");
        assert_eq!(counters["n_accepted"], run["draft_n_accepted"], "{n_max}");
    }
}

#[test]
fn a_draft_in_the_wrong_place_is_named() {
    let dir = Dir::new();
    let [target, draft] = bundled_pair(&dir);
    let error = specrun("generate").arg("-m").arg(&draft).args(["-p", "x"]);
    let error = error.error();
    assert!(error.contains("holds only a draft"), "{error}");
    let generate = specrun("generate").arg("-m").arg(&target).args(["-p", "x"]);
    let error = generate.args(["--spec-type", "draft-eagle3"]).error();
    assert!(
        error.contains("draft-eagle3 needs an EAGLE-3 draft"),
        "{error}"
    );
    let other = Dir::new();
    let [_, foreign] = reference_pair(&other);
    let generate = specrun("generate").arg("-m").arg(&target).args(["-p", "x"]);
    let error = generate.arg("-md").arg(&foreign).error();
    assert!(error.contains("draft does not fit the target"), "{error}");
}
