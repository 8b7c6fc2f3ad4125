//! Block drafts: logits and counts of the reference and of llama.cpp on the reference drafts.

use std::path::PathBuf;
use std::sync::Arc;

use kernels::backend::Backend;
use kernels::cpu::{Cpu, CpuConfig};
use runner::batch::{Batch, Outputs};
use runner::model::{load_block_draft, load_target};
use schemas::gguf::open;
use serde_json::Value;

use crate::eagle3::{assert_close, context};
use crate::run::{F32_CACHES, comma_separated, ids, read_npy};
use crate::util::{Cmd, Dir, read_json, reference, specrun};

const DRAFTS: [(&str, &str); 2] = [
    ("dflash-qwen3", "draft-dflash"),
    ("dspark-qwen3", "draft-dspark"),
];

fn convert(dir: &Dir, checkpoint: &str) -> PathBuf {
    let target = reference("qwen3");
    let flags = ["--outtype", "f32"];
    let of_target = ["--target-model-dir", target.to_str().unwrap()];
    match checkpoint {
        "qwen3" => dir.convert(&target, "qwen3.gguf", &flags),
        draft => {
            let flags = [flags, of_target].concat();
            dir.convert(&reference(draft), &format!("{draft}.gguf"), &flags)
        }
    }
}

fn golden(checkpoint: &str) -> Value {
    read_json(&reference(checkpoint).join("logits.json"))
}

fn tokens(golden: &Value) -> Vec<u32> {
    ids(golden).iter().map(|&id| id as u32).collect()
}

/// Compares all rows of a block after the prompt.
#[test]
fn logits_are_those_of_the_reference() {
    let config = CpuConfig {
        threads: 1,
        ..CpuConfig::default()
    };
    let backend = Arc::new(Cpu::new(config).unwrap());
    for (checkpoint, _) in DRAFTS {
        let dir = Dir::new();
        let golden = golden(checkpoint);
        let [target, draft] = ["qwen3", checkpoint].map(|name| open(&convert(&dir, name)).unwrap());
        let prompt = tokens(&golden["prompt"]);
        let n = prompt.len();

        let (model, fusion) = load_block_draft(&*backend, &draft, &target).unwrap();
        let features = model.hparams.features.clone().expect("a draft has them");
        let block = features.block.expect("a block draft has one");
        let mut trunk = load_target(&*backend, &target).unwrap();
        trunk.taps.clone_from(&features.layers);
        let mut trunk = context(&backend, trunk, n);
        let mut batch = Batch::default();
        batch.push(0, 0, &prompt, Outputs::None);
        trunk.forward(&batch, None);
        let room = |width: u64| Backend::buffer(&*backend, n * width as usize);
        let n_embd = model.hparams.n_embd;
        let (mut projected, mut fused) = (room(n_embd), room(n_embd));
        fusion.forward(&backend, trunk.features(), n, &mut projected, &mut fused);

        let mut draft = context(&backend, model, n);
        draft.inject(&batch, &fused);
        let mut last = golden["first_token"].as_u64().unwrap() as u32;
        let mut rows = vec![block.mask_token; golden["top"]["ids"].as_array().unwrap().len()];
        rows[0] = last;
        let mut batch = Batch::default();
        batch.push(0, n as u32, &rows, Outputs::All);
        let mut logits = draft.forward(&batch, None).to_vec();
        let n_out = draft.model().n_out();
        let first_row = golden["first_draft_row"].as_u64().unwrap() as usize;
        for (i, row) in logits.chunks_exact_mut(n_out).enumerate() {
            // Only the rows that propose tokens depend on the token before.
            if i >= first_row {
                draft.add_markov_bias(last, row);
                let best = (0..n_out).max_by(|&a, &b| row[a].total_cmp(&row[b]));
                last = draft.model().token(best.unwrap() as u32);
            }
            let expected = &golden["top"]["logits"][i];
            let top = ids(&golden["top"]["ids"][i]);
            for (token, expected) in top.into_iter().zip(expected.as_array().unwrap()) {
                let place = format!("{checkpoint} row {i}, token {token}");
                assert_close(&place, row[token as usize], expected);
            }
        }
        let expected = read_npy(&reference(checkpoint).join("last_logits.npy"));
        let found = &logits[logits.len() - n_out..];
        for (token, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
            let place = format!("{checkpoint} token {token}");
            assert_close(&place, found, &f64::from(expected).into());
        }
    }
}

fn generate(target: &PathBuf, golden: &Value, run: &Value) -> Cmd {
    let generate = specrun("generate").arg("-m").arg(target);
    let prompt = comma_separated(&golden["prompt"]);
    let generate = generate.arg("--tokens").arg(prompt);
    let [n_max, n_predict] = ["n_max", "n_predict"].map(|field| run[field].to_string());
    let flags = ["--spec-draft-n-max", &n_max, "-n", &n_predict];
    generate.args(flags).args(F32_CACHES)
}

fn assert_counts(report: &Value, name: &str, run: &Value) {
    let place = format!("{name} {}", run["n_max"]);
    assert_eq!(report["tokens"], run["tokens"], "{place}");
    let counters = &report["counters"];
    assert_eq!(counters["by_speculator"][0]["name"], name);
    assert_eq!(counters["n_drafted"], run["draft_n"], "{place}");
    assert_eq!(counters["n_accepted"], run["draft_n_accepted"], "{place}");
}

/// Drafted and accepted counts for several block lengths; the speculator is detected automatically. Those of the
/// DFlash2 draft are llama.cpp's.
#[test]
fn counts_are_those_of_the_reference() {
    let dflash2 = ("dflash2-qwen3", "draft-dflash");
    for (checkpoint, name) in DRAFTS.into_iter().chain([dflash2]) {
        let dir = Dir::new();
        let [target, draft] = ["qwen3", checkpoint].map(|name| convert(&dir, name));
        let golden = golden(checkpoint);
        for run in golden["speculation"].as_array().unwrap() {
            let generate = generate(&target, &golden, run).arg("-md").arg(&draft);
            assert_counts(&generate.json(), name, run);
        }
    }
}

/// Drafts that read different layers of the target run together. The second one only follows the text, because
/// the first always drafts.
#[test]
fn drafts_that_read_other_layers_run_together() {
    let dir = Dir::new();
    let target = convert(&dir, "qwen3");
    let drafts = ["eagle3-qwen3", "dflash-qwen3", "dspark-qwen3"].map(|name| convert(&dir, name));
    for (checkpoint, chain) in [
        ("eagle3-qwen3", "draft-eagle3,draft-dflash"),
        ("dflash-qwen3", "draft-dflash,draft-dspark,draft-eagle3"),
        ("dspark-qwen3", "draft-dspark,draft-dflash"),
    ] {
        let golden = golden(checkpoint);
        let run = golden["speculation"].as_array().unwrap().last().unwrap();
        let mut generate = generate(&target, &golden, run).args(["--spec-type", chain]);
        for draft in &drafts {
            generate = generate.arg("-md").arg(draft);
        }
        let name = chain.split(',').next().unwrap();
        assert_counts(&generate.json(), name, run);
    }
}
