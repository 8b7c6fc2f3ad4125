//! Chains of speculators on the bundled family, run by the real binary.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::util::{Dir, bundled, read_json, root, specrun};

/// The bundled target and its drafts.
struct Family {
    dir: Dir,
    target: PathBuf,
    draft: PathBuf,
    eagle3: PathBuf,
}

/// Result of one prompt: its tokens, and drafted and accepted tokens by speculator.
type Text = (Vec<u64>, Vec<(String, u64, u64)>);

impl Family {
    fn new() -> Family {
        let dir = Dir::new();
        let target = bundled("tiny-qwen35-mtp");
        let of_target = ["--target-model-dir", target.to_str().unwrap()];
        Family {
            target: dir.convert(&target, "target.gguf", &[]),
            draft: dir.convert(&bundled("tiny-draft"), "draft.gguf", &[]),
            eagle3: dir.convert(&bundled("tiny-eagle3"), "eagle3.gguf", &of_target),
            dir,
        }
    }

    /// Generates the texts of the ten prompts.
    fn generate(&self, n_parallel: usize, flags: &[&str]) -> Vec<Text> {
        let generate = specrun("generate").arg("-m").arg(&self.target);
        let generate = generate.arg("-md").arg(&self.eagle3);
        let generate = generate.arg("-md").arg(&self.draft);
        let generate = generate.arg("-f").arg(root().join("models/prompts.jsonl"));
        let generate = generate.args(["--parallel", &n_parallel.to_string(), "--json"]);
        let lines = generate.args(flags).ok();
        let text = |line: &str| -> Text {
            let report: Value = serde_json::from_str(line).unwrap();
            let tokens = report["tokens"].as_array().unwrap();
            let tokens = tokens.iter().map(|token| token.as_u64().unwrap());
            let counters = report["counters"]["by_speculator"].as_array().unwrap();
            let counters = counters.iter().map(|speculator| {
                let count = |key: &str| speculator[key].as_u64().unwrap();
                let name = speculator["name"].as_str().unwrap().to_owned();
                (name, count("n_drafted"), count("n_accepted"))
            });
            let mut counters: Vec<_> = counters.collect();
            counters.sort();
            (tokens.collect(), counters)
        };
        lines.lines().map(text).collect()
    }
}

/// Regression test: hidden-state drafters after n-gram drafters in a chain panicked at four sequences and
/// lost accepted tokens at three.
#[test]
fn texts_and_counts_do_not_depend_on_the_number_of_sequences() {
    let family = Family::new();
    let tokens = |texts: Vec<Text>| texts.into_iter().map(|(tokens, _)| tokens);
    let plain: Vec<_> = tokens(family.generate(1, &["--spec-type", "none"])).collect();
    for (chain, n_parallel) in [
        ("ngram-simple,draft-mtp", 4),
        ("ngram-cache,draft-mtp", 3),
        ("ngram-map-k,draft-mtp", 8),
        ("ngram-simple,draft-eagle3", 3),
        ("ngram-map-k4v,ngram-cache,draft-mtp,draft-eagle3", 10),
        ("ngram-simple,draft-simple,draft-mtp", 5),
    ] {
        let flags = ["--spec-type", chain];
        let alone = family.generate(1, &flags);
        let together = family.generate(n_parallel, &flags);
        assert_eq!(alone, together, "{chain} with {n_parallel} sequences");
        assert!(tokens(alone).eq(plain.iter().cloned()), "{chain}");
    }
}

/// A trace has one line for each pass of each sequence; the lines add up to the counters.
#[test]
fn a_trace_adds_up() {
    let family = Family::new();
    let path = family.dir.join("trace.jsonl");
    let flags = ["--spec-type", "ngram-cache,draft-mtp", "--spec-trace"];
    let texts = family.generate(4, &[&flags[..], &[path.to_str().unwrap()]].concat());
    let trace = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = trace
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let schema = read_json(&root().join("schemas/json/spec-trace.schema.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(lines.iter().all(|line| validator.is_valid(line)));
    let drafted = |line: &Value| line["drafted"].as_array().unwrap().len() as u64;
    let accepted = |line: &Value| line["n_accepted"].as_u64().unwrap();
    for name in ["ngram-cache", "draft-mtp"] {
        let own = || lines.iter().filter(|line| line["drafter"] == name);
        let counters = texts.iter().flat_map(|(_, counters)| counters);
        let counted = counters
            .filter(|(speculator, ..)| speculator == name)
            .fold((0, 0), |sum, (_, n, m)| (sum.0 + n, sum.1 + m));
        let traced = (own().map(drafted).sum(), own().map(accepted).sum());
        assert_eq!(counted, traced, "{name}");
        assert!(counted.1 > 0);
    }
    // The first token of a text comes from the prefill.
    let n_tokens: usize = texts.iter().map(|(tokens, _)| tokens.len()).sum();
    let n_traced: u64 = lines.iter().map(|line| accepted(line) + 1).sum();
    assert!(n_tokens as u64 <= n_traced + texts.len() as u64);
    for line in &lines {
        let is_rejected = accepted(line) < drafted(line);
        assert_eq!(line["rollback"].is_string(), is_rejected, "{line}");
    }
}
