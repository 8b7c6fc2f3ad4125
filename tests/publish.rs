//! `specconv card`, `specconv publish` and `specrun tune`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::hub::with_hub;
use crate::mock::{Mock, TOKEN};
use crate::util::{Dir, bundled, read_json, reference, root, sha256, specconv, specrun};

/// Text for divergences: the source of a test of this repository.
fn text() -> PathBuf {
    root().join("tests/divergence.rs")
}

/// A folder with two quantized models, and the reports about them.
struct Published {
    dir: Dir,
    folder: PathBuf,
    reports: Vec<PathBuf>,
}

impl Published {
    fn new() -> Published {
        let dir = Dir::new();
        let base = dir.convert(&bundled("tiny-qwen35-mtp"), "base.gguf", &[]);
        let folder = dir.join("out");
        fs::create_dir(&folder).unwrap();
        let quantize = specconv("quantize")
            .arg(&base)
            .arg(folder.join("tiny-{FTYPE}.gguf"));
        let quantized = quantize.args(["Q8_0,Q4_K_M", "--json"]).ok();
        let [q8, q4] = ["Q8_0", "Q4_K_M"].map(|name| folder.join(format!("tiny-{name}.gguf")));
        let kld = specrun("kld")
            .arg(&base)
            .arg(&q8)
            .arg(&q4)
            .arg("-f")
            .arg(text());
        let kld = kld.args(["-c", "64", "--chunks", "3", "--json"]).ok();
        let verify = specrun("verify")
            .arg(&q4)
            .args(["--spec-type", "draft-mtp"]);
        let verify = verify.arg("-f").arg(root().join("models/prompts.jsonl"));
        let verify = verify
            .args(["-n", "12", "--check", "identity,acceptance", "--json"])
            .ok();
        let reports = [
            ("quantize.json", quantized),
            ("kld.json", kld),
            ("verify.json", verify),
        ];
        let reports = reports.map(|(name, content)| dir.file(name, content));
        Published {
            folder,
            reports: reports.into(),
            dir,
        }
    }

    fn card(&self) -> String {
        fs::read_to_string(self.folder.join("README.md")).unwrap()
    }
}

#[test]
fn a_card_has_what_was_measured() {
    let published = Published::new();
    let card = || {
        specconv("card")
            .arg(&published.folder)
            .args(&published.reports)
    };
    let report = card().args(["--license", "mit"]).json();
    let kld = read_json(&published.reports[1]);
    let verify = read_json(&published.reports[2]);
    let text = published.card();
    for (i, name) in [(0, "tiny-Q8_0.gguf"), (1, "tiny-Q4_K_M.gguf")] {
        let files = report["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["name"] == name).unwrap();
        assert_eq!(file["kld"], kld["models"][i]["kld"]["mean"]);
        assert_eq!(file["bits_per_weight"], kld["models"][i]["bits_per_weight"]);
        let hash = sha256(&fs::read(published.folder.join(name)).unwrap());
        assert_eq!(file["sha256"][0], hash.as_str());
        let sums = fs::read_to_string(published.folder.join("SHA256SUMS")).unwrap();
        assert!(sums.contains(&format!("{hash}  {name}\n")), "{sums}");
        assert!(text.contains(&format!("`{hash}`")), "{text}");
    }
    let draft = &report["files"][0]["draft"];
    assert_eq!(
        draft["acceptance"],
        verify["speculators"][0]["counters"]["acceptance"]
    );
    let command = "llama-server -m tiny-Q4_K_M.gguf --spec-type draft-mtp --spec-draft-n-max ";
    assert!(text.contains(command), "{text}");
    assert!(
        text.starts_with("---\nlicense: mit\ntags:\n- gguf\nmodel-index:\n"),
        "{text}"
    );
    // No file states a base model, so the card has none.
    assert!(!text.contains("base_model"), "{text}");

    // The second run keeps the text and the keys of the user.
    let edited = text.replace("license: mit\n", "license: mit # checked\ndatasets: [a]\n");
    let edited = edited.replace(
        "\n<!-- specconv card: the",
        "\nMine.\n\n<!-- specconv card: the",
    );
    fs::write(
        published.folder.join("README.md"),
        edited + "\n## Also mine\n",
    )
    .unwrap();
    let again = card().args(["--base-model", "org/base", "--language", "en,no"]);
    again.args(["--repo", "me/tiny-GGUF"]).ok();
    let text = published.card();
    let start = "---\nlicense: mit # checked\nlanguage:\n- en\n- \"no\"\nbase_model: org/base\n\
                 base_model_relation: quantized\ntags:\n- gguf\ndatasets: [a]\nmodel-index:\n";
    assert!(text.starts_with(start), "{text}");
    assert!(
        text.contains("\nMine.\n") && text.ends_with("\n## Also mine\n"),
        "{text}"
    );
    assert!(
        text.contains("llama-server -hf me/tiny-GGUF:Q4_K_M "),
        "{text}"
    );
    assert_eq!(text.matches("## Files").count(), 1);
}

#[test]
fn a_card_leaves_out_what_was_not_measured() {
    let published = Published::new();
    specconv("card").arg(&published.folder).ok();
    let text = published.card();
    for absent in ["KLD", "acceptance", "model-index", "--spec-type", "license"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    // Reports about files that have changed since, and files that are no reports.
    let [q8, q4] = ["Q8_0", "Q4_K_M"].map(|t| published.folder.join(format!("tiny-{t}.gguf")));
    fs::copy(&q8, &q4).unwrap();
    let error = specconv("card")
        .arg(&published.folder)
        .arg(&published.reports[1])
        .error();
    assert!(error.contains("the file has changed since"), "{error}");
    let other = published.dir.file("other.json", "{\"a\": 1}");
    let error = specconv("card").arg(&published.folder).arg(&other).error();
    assert!(
        error.contains("not a report of convert, quantize, kld or verify"),
        "{error}"
    );
    let empty = published.dir.join("empty");
    fs::create_dir(&empty).unwrap();
    let error = specconv("card").arg(&empty).error();
    assert!(error.contains("no GGUF model"), "{error}");
}

#[test]
fn publishing_lists_what_would_change() {
    let dir = Dir::new();
    let folder = dir.join("out");
    fs::create_dir_all(folder.join("sub")).unwrap();
    for (name, content) in [
        ("same.gguf", "same"),
        ("README.md", "new"),
        ("sub/more.txt", "more"),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
    fs::write(folder.join(".hidden"), "x").unwrap();
    let mock = Mock::start();
    mock.state.lock().unwrap().private = true;
    mock.put("same.gguf", b"same", true);
    mock.put("README.md", b"old", false);
    mock.put(".gitattributes", b"x", false);
    let publish = |repo: &str, token: &str| {
        let publish = specconv("publish").arg(&folder).arg(repo).arg("--dry-run");
        with_hub(publish, &mock, &dir).env("HF_TOKEN", token)
    };
    let report = publish("org/name", TOKEN).json();
    let changes = report["files"].as_array().unwrap().iter();
    let changes: Vec<(&str, &str)> = changes
        .map(|file| {
            (
                file["name"].as_str().unwrap(),
                file["change"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("README.md", "changed"),
        ("same.gguf", "equal"),
        ("sub/more.txt", "new"),
    ];
    assert_eq!(changes, expected);
    assert_eq!(report["only_on_hub"][0], ".gitattributes");
    assert_eq!(
        (&report["upload_bytes"], &report["commit"]),
        (&7.into(), &Value::Null)
    );
    assert!(mock.requests().iter().all(|request| request.body.is_none()));
    let new = publish("hf://org/other", TOKEN).ok();
    assert!(
        new.contains("would upload 3 files, 11 B to hf://org/other (a new repository)"),
        "{new}"
    );

    let error = publish("org/name", "hf_wrong").error();
    assert!(
        error.contains("HF_TOKEN") && !error.contains("hf_wrong"),
        "{error}"
    );
    let error = publish("name", TOKEN).error();
    assert!(error.contains("expected hf://org/name"), "{error}");
}

#[cfg(not(feature = "upload"))]
#[test]
fn a_build_without_uploads_names_the_command_that_uploads() {
    let dir = Dir::new();
    fs::write(dir.join("a.txt"), "a").unwrap();
    let publish = specconv("publish").arg(dir.path()).arg("org/name");
    let run = publish.args(["--private", "-m", "first"]).run();
    let command = format!(
        "hint: hf upload org/name {} . --private --commit-message 'first'",
        dir.path().display()
    );
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr.contains("--features full,upload"),
        "{}",
        run.stderr
    );
    let stderr = run.stderr.replace(['\n', ' '], "");
    assert!(stderr.contains(&command.replace(' ', "")), "{stderr}");
}

/// Returns the divergence of a file from the base on the text of [`tune`].
fn divergence(base: &Path, file: &Path) -> f64 {
    let kld = specrun("kld").arg(base).arg(file).arg("-f").arg(text());
    let report = kld.args(["-c", "64", "--chunks", "2"]).json();
    report["models"][0]["kld"]["mean"]["value"]
        .as_f64()
        .unwrap()
}

#[test]
fn a_tuned_mix_beats_the_standard_mix_of_its_size() {
    let dir = Dir::new();
    let base = dir.convert(&bundled("tiny-qwen35-mtp"), "base.gguf", &[]);
    let standard = dir.join("standard.gguf");
    let quantize = specconv("quantize").arg(&base).arg(&standard).arg("Q3_K_M");
    let bits = quantize.json()["bits_per_weight"].as_f64().unwrap();
    let tune = |recipe: &str, more: &[&str]| {
        let tune = specrun("tune").arg("base.gguf").arg("-f").arg(text());
        let tune = tune.args(["-c", "64", "--chunks", "2", "--bands", "1", "-o", recipe]);
        tune.args(["--types", "q2_K,q3_K,q4_K"])
            .args(more)
            .current_dir(dir.path())
    };
    let limit = bits.to_string();
    let report = tune("a.toml", &["--bpw", &limit]).json();
    let [tuned, smaller] = [0, 1].map(|i| &report["mixes"][i]);
    assert!(tuned["bits_per_weight"].as_f64().unwrap() <= bits);
    assert!(smaller["bits_per_weight"].as_f64().unwrap() <= bits + 1e-9);

    // The recipe makes a file of this size and divergence, better than the standard mix.
    specconv("quantize")
        .args(["--recipe", "a.toml"])
        .current_dir(dir.path())
        .ok();
    let made = dir.join("base-tuned.gguf");
    let found = divergence(&base, &made);
    let predicted = tuned["kld"]["value"].as_f64().unwrap();
    assert!(
        (found - predicted).abs() < 1e-3 * predicted.max(0.1),
        "{found}, {predicted}"
    );
    let of_standard = divergence(&base, &standard);
    assert!(found < 0.9 * of_standard, "{found}, standard {of_standard}");
    let sizes = [&made, &standard].map(|path| fs::metadata(path).unwrap().len());
    assert!(sizes[0] <= sizes[1], "{sizes:?}");

    // A run that was cut off continues to the same recipe, without measuring again.
    let path = dir.join("a.measurements.json");
    let mut cut = read_json(&path);
    let measured = cut["measured"].as_array_mut().unwrap();
    let n = measured.len();
    measured.truncate(n / 2);
    fs::write(dir.join("b.measurements.json"), cut.to_string()).unwrap();
    tune("b.toml", &["--bpw", &limit]).ok();
    let [a, b] = ["a.toml", "b.toml"].map(|name| fs::read_to_string(dir.join(name)).unwrap());
    assert_eq!(a, b);
    let [a, b] = ["a", "b"].map(|name| read_json(&dir.join(&format!("{name}.measurements.json"))));
    assert_eq!(a, b);

    // The smallest mix below a divergence, from the same measurements.
    let kept = ["--measurements", "a.measurements.json", "--no-compare"];
    let small = tune("c.toml", &[&["--kld", "0.05"], &kept[..]].concat()).json();
    assert!(
        small["predicted_kld"].as_f64().unwrap() <= 0.05 + 0.1,
        "{small}"
    );
    let error = tune("d.toml", &[&["--bpw", "1"], &kept[..]].concat()).error();
    assert!(
        error.contains("no mix of these types is small enough"),
        "{error}"
    );
    let other = specrun("tune").arg("base.gguf").arg("-f").arg(text());
    let other = other.args(["-c", "32", "--bpw", "4", "-o", "e.toml"]);
    let other = other.args(["--measurements", "a.measurements.json"]);
    let error = other.current_dir(dir.path()).error();
    assert!(error.contains("measurements of another model"), "{error}");
}

#[test]
fn rows_that_are_not_a_multiple_of_256_get_types_with_blocks_of_32() {
    let dir = Dir::new();
    // Rows of 64 and 160 elements.
    dir.convert(&reference("llama"), "base.gguf", &[]);
    let tune = specrun("tune").arg("base.gguf").arg("-f").arg(text());
    let tune = tune.args(["-c", "32", "--chunks", "1", "--bands", "1", "--bpw", "6"]);
    let report = tune.current_dir(dir.path()).json();
    let groups = report["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 9);
    for group in groups {
        let dtype = group["dtype"].as_str().unwrap();
        let short = ["Q4_0", "Q5_0", "Q5_1", "Q8_0"];
        assert!(short.contains(&dtype), "{group}");
    }
    let mixes = report["mixes"].as_array().unwrap();
    assert!(
        mixes[0]["bits_per_weight"].as_f64().unwrap() <= 6.0,
        "{report}"
    );
    let quantize = specconv("quantize").args(["--recipe", "recipe.toml"]);
    quantize.current_dir(dir.path()).ok();
    assert!(dir.join("base-tuned.gguf").is_file());
}
