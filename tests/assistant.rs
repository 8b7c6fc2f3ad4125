//! Assistants: logits and counts of the reference and of llama.cpp on the reference assistant, and the clusters
//! of tokens that llama.cpp's converter leaves out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::backend::{Backend, RowsOp};
use kernels::cpu::{Cpu, CpuConfig};
use runner::batch::{Batch, Outputs};
use runner::model::{load_assistant, load_target};
use schemas::gguf::{Owned, open};
use serde_json::Value;

use crate::eagle3::{assert_close, context};
use crate::run::{F32_CACHES, comma_separated, ids, read_npy};
use crate::util::{Dir, read_json, reference, specrun};

const TARGET: &str = "gemma4";
const ASSISTANT: &str = "gemma4-assistant";

fn convert(dir: &Dir) -> [PathBuf; 2] {
    [TARGET, ASSISTANT].map(|name| {
        let file = format!("{name}.gguf");
        dir.convert(&reference(name), &file, &["--outtype", "f32"])
    })
}

/// Compares the steps of a draft after the prompt.
#[test]
fn logits_are_those_of_the_reference() {
    let config = CpuConfig {
        threads: 1,
        ..CpuConfig::default()
    };
    let backend = Arc::new(Cpu::new(config).unwrap());
    let dir = Dir::new();
    let golden = read_json(&reference(ASSISTANT).join("logits.json"));
    let [target, draft] = convert(&dir).map(|file| open(&file).unwrap());
    let prompt: Vec<u32> = ids(&golden["prompt"]).iter().map(|&id| id as u32).collect();
    let n = prompt.len();
    let draft = load_assistant(&*backend, &draft, &target).unwrap();
    let mut draft = context(&backend, draft, n);
    let trunk = load_target(&*backend, &target).unwrap();
    let width = trunk.hparams.n_embd as usize;
    let mut trunk = context(&backend, trunk, n);
    let mut batch = Batch::default();
    batch.push(0, 0, &prompt, Outputs::None);
    trunk.forward(&batch, None);
    let mut hidden = Backend::buffer(&*backend, width);
    backend.copy_rows(trunk.carried(), n - 1, &mut hidden, 0, width, 1);

    let mut last = golden["first_token"].as_u64().unwrap() as u32;
    let steps = golden["top"]["ids"].as_array().unwrap();
    let mut logits = Vec::new();
    for (step, top) in steps.iter().enumerate() {
        let mut batch = Batch::default();
        batch.push(0, n as u32, &[last], Outputs::All);
        draft.run_beside(&mut trunk, &batch, &hidden);
        logits = draft.download_logits().to_vec();
        let top = ids(top);
        let expected = golden["top"]["logits"][step].as_array().unwrap();
        for (&token, expected) in top.iter().zip(expected) {
            let place = format!("step {step}, token {token}");
            assert_close(&place, logits[token as usize], expected);
        }
        last = top[0] as u32;
        backend.copy_rows(draft.carried(), 0, &mut hidden, 0, width, 1);
    }
    let expected = read_npy(&reference(ASSISTANT).join("last_logits.npy"));
    for (token, (&found, &expected)) in logits.iter().zip(&expected).enumerate() {
        assert_close(
            &format!("token {token}"),
            found,
            &f64::from(expected).into(),
        );
    }
}

/// Runs the recorded speculation with an assistant and compares text and counts.
fn check_counts(target: &Path, draft: &Path) {
    let golden = read_json(&reference(ASSISTANT).join("logits.json"));
    for run in golden["speculation"].as_array().unwrap() {
        let [n_max, n_predict] = ["n_max", "n_predict"].map(|field| run[field].to_string());
        let generate = specrun("generate")
            .arg("-m")
            .arg(target)
            .arg("-md")
            .arg(draft);
        let prompt = comma_separated(&golden["prompt"]);
        let generate = generate.arg("--tokens").arg(prompt);
        let generate = generate.args(["--spec-draft-n-max", &n_max, "-n", &n_predict]);
        let report: Value = generate.args(F32_CACHES).arg("--ignore-eos").json();
        assert_eq!(report["tokens"], run["tokens"], "{n_max}");
        let counters = &report["counters"];
        assert_eq!(counters["by_speculator"][0]["name"], "draft-mtp");
        assert_eq!(counters["n_drafted"], run["draft_n"], "{n_max}");
        assert_eq!(counters["n_accepted"], run["draft_n_accepted"], "{n_max}");
    }
}

/// The speculator is detected automatically.
#[test]
fn counts_are_those_of_the_reference() {
    let dir = Dir::new();
    let [target, draft] = convert(&dir);
    check_counts(&target, &draft);
}

/// With all clusters in use, every token is scored.
#[test]
fn clusters_of_all_tokens_draft_the_same() {
    let dir = Dir::new();
    let [target, draft] = convert(&dir);
    let draft = fixtures::clustered(&open(&draft).unwrap(), 18, 18);
    check_counts(&target, &dir.gguf("clusters.gguf", &draft));
}

#[test]
fn an_order_that_lacks_a_token_is_rejected() {
    let dir = Dir::new();
    let [target, draft] = convert(&dir);
    let mut draft = fixtures::clustered(&open(&draft).unwrap(), 18, 3);
    let ordering = draft.tensors.last_mut().unwrap();
    let mut bytes = ordering.read_all().unwrap();
    bytes.copy_within(0..4, 8);
    let row_bytes = bytes.len() as u64;
    ordering.source = Arc::new(Owned { bytes, row_bytes });
    let draft = dir.gguf("damaged.gguf", &draft);
    let generate = specrun("generate")
        .arg("-m")
        .arg(target)
        .arg("-md")
        .arg(draft);
    let message = generate.args(["--tokens", "5,6,7", "-n", "4"]).error();
    let expected =
        "tensor masked_embd_ordering: token 0 in row 2, expected each of the tokens 0 to 899 once";
    assert!(message.contains(expected), "{message}");
}
