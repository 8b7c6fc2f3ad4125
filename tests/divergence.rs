//! `specrun kld`, compared with the logits that `specrun logits` prints.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::util::{Dir, bundled, reference, specconv, specrun};

const TEXT: &str = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\nfor i in range(10):\n";
const N_CTX: usize = 16;

/// Log-probabilities of all tokens after each of the given tokens.
fn logs(model: &Path, tokens: &[u64]) -> Vec<Vec<f64>> {
    let list: Vec<String> = tokens.iter().map(u64::to_string).collect();
    let report = specrun("logits").arg("-m").arg(model);
    let report = report
        .args(["--top", "1000000", "--tokens", &list.join(",")])
        .json();
    let positions = report["positions"].as_array().unwrap().iter();
    let row = |position: &Value| {
        let top = position["top"].as_array().unwrap();
        let mut logits = vec![0.0; top.len()];
        for entry in top {
            logits[entry["id"].as_u64().unwrap() as usize] = entry["logit"].as_f64().unwrap();
        }
        let sum = logits.iter().map(|x: &f64| x.exp()).sum::<f64>().ln();
        logits.iter().map(|x| x - sum).collect()
    };
    positions.map(row).collect()
}

#[track_caller]
fn assert_near(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    let difference = (found - expected).abs();
    assert!(
        difference < 1e-5 * expected.abs().max(1.0),
        "{found}, expected {expected}"
    );
}

#[test]
fn divergence_is_that_of_the_logits() {
    let dir = Dir::new();
    let base = dir.convert(&bundled("tiny-qwen35-mtp"), "base.gguf", &[]);
    let quantized = dir.join("q.gguf");
    specconv("quantize")
        .arg(&base)
        .arg(&quantized)
        .arg("Q2_K")
        .ok();
    let file = dir.file("text.py", TEXT);
    let run = || {
        let run = specrun("kld")
            .args([&base, &quantized, &base])
            .arg("-f")
            .arg(&file);
        run.args(["-c", &N_CTX.to_string()])
    };
    let [saved, page] = ["base.logits", "kld.html"].map(|name| dir.join(name));
    let saving = run().arg("--save-logits").arg(&saved);
    let report = saving.arg("--html").arg(&page).json();

    let tokens = specrun("tokenize")
        .arg("-m")
        .arg(&base)
        .args(["-p", TEXT])
        .json();
    let tokens: Vec<u64> = serde_json::from_value(tokens["tokens"].clone()).unwrap();
    let (mut klds, mut ratios, mut deltas, mut n_same) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for chunk in tokens.chunks_exact(N_CTX) {
        let (base, other) = (logs(&base, chunk), logs(&quantized, chunk));
        for position in N_CTX / 2..N_CTX - 1 {
            let (base, other) = (&base[position], &other[position]);
            let terms = base.iter().zip(other).filter(|(p, _)| **p > -16.0);
            klds.push(terms.map(|(p, q)| p.exp() * (p - q)).sum::<f64>());
            let next = chunk[position + 1] as usize;
            ratios.push(base[next] - other[next]);
            deltas.push(100.0 * (other[next].exp() - base[next].exp()));
            let top = |row: &[f64]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
            n_same += f64::from(u8::from(top(base) == top(other)));
        }
    }
    let n = klds.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / n;
    assert_eq!(report["n_scored"], klds.len());
    let [quantized_report, itself] = [0, 1].map(|i| &report["models"][i]);
    assert_near(&quantized_report["kld"]["mean"]["value"], mean(&klds));
    assert_near(
        &quantized_report["ln_perplexity_ratio"]["value"],
        mean(&ratios),
    );
    assert_near(&quantized_report["same_top"]["value"], n_same / n);
    let squares: Vec<f64> = deltas.iter().map(|x| x * x).collect();
    assert_near(
        &quantized_report["delta_p_rms_percent"]["value"],
        mean(&squares).sqrt(),
    );
    let largest = klds.iter().copied().fold(0.0, f64::max);
    assert_near(&quantized_report["kld"]["percentiles"][0]["value"], largest);
    assert!(mean(&klds) > 0.05, "Q2_K differs");
    let histogram = quantized_report["kld_histogram"].as_array().unwrap();
    let count = |bin: &Value| {
        let [from, to] = ["from", "to"].map(|key| bin[key].as_f64().unwrap());
        let is_inside = |kld: &&f64| (from == 0.0 || **kld >= from) && **kld < to;
        (
            bin["n"].as_u64().unwrap(),
            klds.iter().filter(is_inside).count() as u64,
        )
    };
    // Values beside the end of a range may be counted in the next.
    let n_wrong: u64 = histogram
        .iter()
        .map(|bin| count(bin).0.abs_diff(count(bin).1))
        .sum();
    assert!(n_wrong <= 2, "{histogram:?}");
    let page = fs::read_to_string(&page).unwrap();
    for shown in [
        "q.gguf",
        "Positions by divergence",
        "Percentiles",
        "<svg",
        "99.9 %",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(!page.contains("<script"), "{page}");
    // The base against itself.
    assert_eq!(itself["kld"]["mean"]["value"], 0.0);
    assert_eq!(itself["same_top"]["value"], 1.0);
    assert_eq!(itself["perplexity_ratio"]["standard_error"], 0.0);

    // With the saved logits in place of the base: 16 bits are precise to 1e-4.
    let again = specrun("kld")
        .arg(&quantized)
        .arg("--base-logits")
        .arg(&saved)
        .json();
    let found = again["models"][0]["kld"]["mean"]["value"].as_f64().unwrap();
    assert!((found - mean(&klds)).abs() < 1e-4, "{found}");
    assert_eq!(again["n_scored"], klds.len());
    // The same text gives the same bits.
    let mut repeated = run().json();
    repeated["provenance"] = report["provenance"].clone();
    assert_eq!(repeated, report);
}

#[test]
fn divergence_needs_models_that_can_be_compared() {
    let dir = Dir::new();
    let base = dir.convert(&bundled("tiny-qwen35-mtp"), "base.gguf", &[]);
    let other = dir.convert(&reference("qwen3"), "other.gguf", &[]);
    let file = dir.file("text.py", TEXT);
    let kld = |models: &[&Path], n_ctx: &str| {
        let run = specrun("kld").args(models).arg("-f").arg(&file);
        run.args(["-c", n_ctx]).error()
    };
    let error = kld(&[&base, &other], "16");
    assert!(
        error.contains("only models with the same tokens can be compared"),
        "{error}"
    );
    let error = kld(&[&base], "16");
    assert!(
        error.contains("expected a base and models to compare"),
        "{error}"
    );
    let error = kld(&[&base, &base], "4096");
    assert!(
        error.contains("expected at least one chunk of 4096"),
        "{error}"
    );

    let saved = dir.join("x.logits");
    let run = specrun("kld").args([&base, &base]).arg("-f").arg(&file);
    run.args(["-c", "16", "--save-logits"]).arg(&saved).ok();
    let whole = fs::read(&saved).unwrap();
    fs::write(&saved, &whole[..whole.len() - 2]).unwrap();
    let cut = specrun("kld")
        .arg(&base)
        .arg("--base-logits")
        .arg(&saved)
        .error();
    let expected = format!("{} bytes, expected {}", whole.len() - 2, whole.len());
    assert!(cut.contains(&expected), "{cut}");
}
