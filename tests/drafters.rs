//! Speculators that need files besides a model.

use std::fs;
use std::path::Path;

use schemas::gguf::{Strings, open};
use schemas::vocab::{Translation, VocabMap, Vocabulary};

use crate::run::{Bundle, f32_file};
use crate::util::{root, specrun};

/// ngram-cache drafts from lookup files and rejects broken ones.
#[test]
fn lookup_files_draft() {
    let bundle = Bundle::new();
    let build = |name: &str, flags: &[&str]| {
        let path = bundle.dir.join(name);
        let build = specrun("build-lookup").arg("-m").arg(&bundle.target);
        let corpus = root().join("tests/peer/compare.py");
        build.arg("-o").arg(&path).args(flags).arg(corpus).ok();
        path
    };
    let (fixed, dynamic) = (build("static", &[]), build("dynamic", &["--dynamic"]));
    let generate = |flags: &[&str]| {
        let generate = specrun("generate").arg("-m").arg(&bundle.target);
        let generate = generate.args(["-p", "def main():\n    for", "-n", "40"]);
        generate.args(flags)
    };
    let plain = generate(&[]).ok();
    let cached = |flags: &[&str]| generate(&[&["--spec-type", "ngram-cache"][..], flags].concat());
    let with = [
        "--lookup-cache-static",
        fixed.to_str().unwrap(),
        "--lookup-cache-dynamic",
        dynamic.to_str().unwrap(),
    ];
    assert_eq!(plain, cached(&with).ok());
    let n_drafted = |flags: &[&str]| cached(flags).json()["counters"]["n_drafted"].as_u64();
    assert!(n_drafted(&with) > n_drafted(&[]));
    // Doubled counts give a different file with the same n-grams.
    let again = build("again", &["--add", fixed.to_str().unwrap()]);
    assert_eq!(
        fs::read(&again).unwrap().len(),
        fs::read(&fixed).unwrap().len()
    );
    let cut = fs::read(&fixed).unwrap();
    let cut = bundle.dir.file("cut", &cut[..cut.len() - 3]);
    let error = cached(&["--lookup-cache-static", cut.to_str().unwrap()]).error();
    assert!(error.contains("the file ends at byte"), "{error}");
    let empty = bundle.dir.file("empty", []);
    let error = cached(&["--lookup-cache-static", empty.to_str().unwrap()]).error();
    assert!(
        error.contains("the file is empty, expected n-grams"),
        "{error}"
    );
    // Token ids of another vocabulary, and a file that is not a lookup file.
    let error = cached(&["--lookup-cache-dynamic", bundle.draft.to_str().unwrap()]).error();
    assert!(error.contains("a token is"), "{error}");
}

/// A draft model with another tokenizer drafts through a vocabulary map, and only through the right one.
#[test]
fn a_vocabulary_map_translates() {
    let bundle = Bundle::new();
    let draft = f32_file(&bundle.dir, "qwen3");
    let tokens = |path: &Path| {
        let plan = open(path).unwrap();
        let tokens = plan.metadata.strings("tokenizer.ggml.tokens").unwrap();
        tokens.expect("a model has them").clone()
    };
    let (ours, theirs) = (tokens(&bundle.target), tokens(&draft));
    fn exact(from: &Strings, to: &Strings) -> Translation {
        let id_of = |text| to.iter().position(|token| token == text);
        let ids = from.iter().map(|text| id_of(text).map(|id| id as u32));
        Translation::new(ids.map(|id| id.into_iter().collect()))
    }
    let map = VocabMap {
        target: Vocabulary::of(&ours),
        draft: Vocabulary::of(&theirs),
        target_to_draft: exact(&ours, &theirs),
        draft_to_target: exact(&theirs, &ours),
    };
    let path = bundle.dir.gguf("map.gguf", &map.to_plan());
    let verify = |draft: &Path, map: &Path| {
        let verify = bundle.verify(&bundle.target).arg("-md").arg(draft);
        // A random draft model is right only by chance.
        let verify = verify.args(["--min-accept", "0"]);
        verify.arg("--spec-vocab-map").arg(map)
    };
    let report = verify(&draft, &path).json();
    assert_eq!(report["verdict"], "pass");
    assert_eq!(report["speculators"][0]["name"], "draft-simple");
    assert_ne!(report["speculators"][0]["counters"]["n_drafted"], 0);
    let error = verify(&bundle.draft, &path).error();
    assert!(error.contains("made for another draft model"), "{error}");
    let error = verify(&draft, &bundle.draft).error();
    assert!(error.contains("expected specconv-vocab-map"), "{error}");
}
