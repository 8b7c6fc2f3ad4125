//! `specrun imatrix`, compared with the files of llama-imatrix.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::gguf::{self, Owned};
use schemas::imatrix::{ImatrixEntry, ImatrixFile};
use serde_json::Value;

use crate::cli::assert_valid;
use crate::util::{Cmd, Dir, bundled, read_json, reference, specconv, specrun};

/// Largest relative difference of a sum of squares from llama-imatrix's, which differs from itself by 4e-5.
const TOLERANCE: f64 = 1e-4;

fn text() -> PathBuf {
    reference("imatrix").join("text.txt")
}

/// The start of the text: some chunks of 64 tokens in every vocabulary.
fn short_text(dir: &Dir) -> PathBuf {
    let text = fs::read(text()).unwrap();
    dir.file("short.txt", &text[..4000])
}

/// The bundled model as F32.
fn bundled_f32(dir: &Dir) -> PathBuf {
    let flags = ["--outtype", "f32"];
    dir.convert(&bundled("tiny-qwen35-mtp"), "base.gguf", &flags)
}

/// Collects a matrix with a text that is named as in the golden files.
fn imatrix(model: &Path, text: &Path, out: &Path) -> Cmd {
    let run = specrun("imatrix").arg(model).arg("-f").arg("text.txt");
    let run = run.current_dir(text.parent().unwrap());
    run.arg("-o").arg(out)
}

#[track_caller]
fn assert_near(found: f64, expected: f64, what: &str) {
    let difference = (found - expected).abs() / expected.abs().max(1e-30);
    assert!(
        difference <= TOLERANCE,
        "{what}: {found}, expected {expected}"
    );
}

/// Compares with a row of `stats.json`: weight, shape, counts, sum, maximum and its index, minimum, sum of the
/// absolute sums, first four sums of squares.
#[track_caller]
fn assert_entry(entry: &ImatrixEntry, row: &Value) {
    let name = row[0].as_str().unwrap();
    let counts: Vec<f64> = entry.counts.iter().map(|&n| n as f64).collect();
    assert_eq!(serde_json::json!(counts), row[2], "{name}");
    let squares: Vec<f64> = entry.squares.iter().map(|&x| x.into()).collect();
    let sums = entry.sums.as_ref().unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    let largest = squares.iter().copied().fold(f64::MIN, f64::max);
    let at = squares.iter().position(|&x| x == largest);
    assert_eq!(at.map(|i| i as u64), row[5].as_u64(), "{name}");
    assert_near(squares.iter().sum(), number(&row[3]), name);
    assert_near(largest, number(&row[4]), name);
    let smallest = squares.iter().copied().fold(f64::MAX, f64::min);
    assert_near(smallest, number(&row[6]), name);
    let absolute = sums.iter().map(|&x| f64::from(x.abs())).sum();
    assert_near(absolute, number(&row[7]), name);
    for (&found, expected) in squares.iter().zip(row[8].as_array().unwrap()) {
        // They are rounded.
        assert_near(found, number(expected), name);
    }
}

#[test]
fn matrices_are_those_of_llama_imatrix() {
    let dir = Dir::new();
    let model = bundled_f32(&dir);
    let golden = read_json(&reference("imatrix").join("stats.json"));
    for (name, run) in golden["runs"].as_object().unwrap() {
        let out = dir.join(&format!("{name}.gguf"));
        let args = run["args"].as_array().unwrap().iter();
        let args = args.map(|arg| arg.as_str().unwrap());
        let report = imatrix(&model, &text(), &out).args(args).json();
        assert_valid("imatrix", &report);
        let file = ImatrixFile::open(&out).unwrap();
        assert_eq!(Some(u64::from(file.n_chunks)), run["chunk_count"].as_u64());
        assert_eq!(Some(u64::from(file.chunk_size)), run["chunk_size"].as_u64());
        let rows = run["entries"].as_array().unwrap();
        assert_eq!(file.entries.len(), rows.len(), "{name}");
        for row in rows {
            assert_entry(&file.entries[row[0].as_str().unwrap()], row);
        }
        match run["ppl"][0].as_f64() {
            Some(expected) => {
                let found = report["perplexity"]["value"].as_f64().unwrap();
                assert!((found - expected).abs() < 1e-3, "{found}");
            }
            None => assert!(report["perplexity"].is_null()),
        }
    }

    // The file of one run, with all keys and tensors.
    let (found, expected) = ("all.gguf", "imatrix-all.gguf");
    let found = gguf::open(&dir.join(found)).unwrap();
    let expected = gguf::open(&reference("imatrix").join(expected)).unwrap();
    assert_eq!(found.metadata, expected.metadata);
    assert_eq!(found.tensors.len(), expected.tensors.len());
    for (found, expected) in found.tensors.iter().zip(&expected.tensors) {
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        let [ours, theirs] = [found, expected].map(|tensor| {
            let bytes = tensor.read_all().unwrap();
            let (values, _) = bytes.as_chunks();
            let values = values.iter().map(|&x| f64::from(f32::from_le_bytes(x)));
            values.collect::<Vec<f64>>()
        });
        let largest = theirs.iter().copied().fold(0.0, |a, b: f64| b.abs().max(a));
        for (found_value, expected_value) in ours.into_iter().zip(theirs) {
            // Sums and skewness cancel, so their scale is that of the tensor.
            let scale = match found.name.ends_with(".in_sum2") {
                true => expected_value.abs(),
                false => largest,
            };
            let is_near = (found_value - expected_value).abs() <= TOLERANCE * scale;
            assert!(
                is_near || found_value.is_nan() && expected_value.is_nan(),
                "{}: {found_value}, expected {expected_value}",
                found.name
            );
        }
    }
}

#[test]
fn quantize_takes_the_matrix() {
    let dir = Dir::new();
    let model = bundled_f32(&dir);
    let out = dir.join("m.imatrix.gguf");
    let collect = imatrix(&model, &text(), &out).args(["-c", "256", "--chunks", "4", "--no-ppl"]);
    collect.args(["--nextn", "--process-output"]).ok();
    let quantize = |matrix: &Path, name: &str| {
        let quantized = dir.join(name);
        let quantize = specconv("quantize").arg("--imatrix").arg(matrix);
        let quantize = quantize.arg(&model).arg(&quantized).arg("IQ2_XXS");
        (quantize, quantized)
    };
    let (command, quantized) = quantize(&out, "m-iq2_xxs.gguf");
    command.ok();
    let types = gguf::open(&quantized).unwrap();
    let head = types.tensor("blk.4.ffn_up.weight").unwrap();
    assert_eq!(head.dtype.to_string(), "IQ2_XXS");
    // Without --nextn, the head has no entries.
    let without = dir.join("without.gguf");
    let collect = imatrix(&model, &text(), &without);
    collect
        .args(["-c", "256", "--chunks", "1", "--no-ppl"])
        .ok();
    let (command, _) = quantize(&without, "refused.gguf");
    assert!(command.error().contains("blk.4."));
}

#[test]
fn the_bits_do_not_depend_on_the_run() {
    let dir = Dir::new();
    let models = [
        (bundled_f32(&dir), None),
        (dir.convert(&reference("qwen35moe"), "moe.gguf", &[]), None),
        (dir.convert(&reference("deepseek2"), "mla.gguf", &[]), None),
    ];
    let target = dir.convert(&reference("qwen3"), "qwen3.gguf", &[]);
    let drafts = ["eagle3-qwen3", "dflash-qwen3", "dspark-qwen3"].map(|draft| {
        let source = reference("qwen3");
        let flags = ["--target-model-dir", source.to_str().unwrap()];
        let draft = dir.convert(&reference(draft), &format!("{draft}.gguf"), &flags);
        (target.clone(), Some(draft))
    });
    let text = short_text(&dir);
    for (i, (model, draft)) in models.into_iter().chain(drafts).enumerate() {
        let collect = |name: &str, args: &[&str]| {
            let out = dir.join(&format!("{i}-{name}.gguf"));
            let run = specrun("imatrix")
                .arg("-m")
                .arg(&model)
                .arg("-f")
                .arg(&text);
            let run = match &draft {
                Some(draft) => run.arg("-md").arg(draft),
                None => run.arg("--nextn"),
            };
            let run = run.args(["-c", "64", "--chunks", "7"]).args(args);
            run.arg("--process-output").arg("-o").arg(&out).ok();
            fs::read(out).unwrap()
        };
        let expected = collect("together", &[]);
        assert!(collect("parts", &["-b", "23", "-t", "1"]) == expected);
        assert!(collect("pairs", &["-b", "150", "--isa", "portable"]) == expected);
    }
}

#[test]
fn heads_and_drafts_have_entries() {
    let dir = Dir::new();
    let text = short_text(&dir);
    let collect = |args: &[&Path], flags: &[&str], name: &str| {
        let out = dir.join(name);
        let run = specrun("imatrix").arg("-m").args(args).arg("-f").arg(&text);
        let run = run
            .args(["-c", "64", "--chunks", "4", "--no-ppl"])
            .args(flags);
        let report = run.arg("-o").arg(&out).json();
        (ImatrixFile::open(&out).unwrap(), report)
    };
    // Experts: every token is counted for each of its experts.
    let moe = dir.convert(&reference("qwen35moe"), "moe.gguf", &[]);
    let (file, report) = collect(&[&moe], &["--nextn"], "moe.imatrix");
    let experts = &file.entries["blk.0.ffn_up_exps.weight"];
    assert_eq!(experts.counts.len(), 8);
    assert_eq!(experts.counts.iter().sum::<u64>(), 4 * 64 * 2);
    assert_eq!(file.entries["blk.0.ffn_gate_inp.weight"].counts, [4 * 64]);
    let head = &file.entries["blk.4.nextn.eh_proj.weight"];
    assert_eq!(head.counts, [4 * 63], "the last token has no successor");
    assert_eq!(file.n_heads, 1);
    // One chunk of a few tokens does not reach all experts.
    let short = ["-c", "4", "--chunks", "1"];
    let run = specrun("imatrix")
        .arg(&moe)
        .arg("-f")
        .arg(&text)
        .args(short);
    let out = dir.join("few.imatrix");
    let ran = run.arg("-o").arg(&out).run();
    assert!(
        ran.stdout.contains(": no token used experts "),
        "{}",
        ran.stdout
    );
    assert!(!report["entries"][0]["statistics"].is_null());

    // A separate head is collected like that of the model.
    let (body, sidecar) = (dir.join("body.gguf"), dir.join("mtp.gguf"));
    let split = specconv("split-mtp").arg(&moe).arg("--body").arg(&body);
    split.arg("--mtp").arg(&sidecar).ok();
    let models = [body.as_path(), Path::new("-md"), sidecar.as_path()];
    let (separate, _) = collect(&models, &[], "separate.imatrix");
    assert_eq!(separate.entries, file.entries);

    // Drafts that read features have a matrix of their own.
    let target = dir.convert(&reference("qwen3"), "qwen3.gguf", &[]);
    let source = reference("qwen3");
    let flags = ["--target-model-dir", source.to_str().unwrap()];
    for (name, n_fused) in [("eagle3-qwen3", 4 * 63), ("dflash-qwen3", 4 * 64)] {
        let draft = dir.convert(&reference(name), &format!("{name}.gguf"), &flags);
        let models = [target.as_path(), Path::new("-md"), draft.as_path()];
        let (file, _) = collect(&models, &[], &format!("{name}.imatrix"));
        assert_eq!(file.entries["fc.weight"].counts, [n_fused]);
        let plan = gguf::open(&draft).unwrap();
        for (weight, entry) in &file.entries {
            let tensor = plan.tensor(weight).expect(weight);
            assert_eq!(entry.squares.len() as u64, tensor.ne0(), "{weight}");
        }
        let matrices = plan.tensors.iter().filter(|tensor| tensor.shape.len() == 2);
        let layers = matrices.filter(|tensor| tensor.name.starts_with("blk."));
        for tensor in layers {
            assert!(file.entries.contains_key(&tensor.name), "{}", tensor.name);
        }
    }
}

#[test]
fn matrices_are_added_and_shown() {
    let dir = Dir::new();
    let model = bundled_f32(&dir);
    let collect = |name: &str, args: &[&str]| {
        let out = dir.join(name);
        imatrix(&model, &text(), &out)
            .args(["-c", "64", "--no-ppl"])
            .args(args)
            .ok();
        out
    };
    let whole = collect("whole.gguf", &["--chunks", "6"]);
    let first = collect("first.gguf", &["--chunks", "2"]);
    // The rest, added while it is collected, or afterwards.
    let rest = ["--from-chunk", "2", "--chunks", "4"];
    let in_file = ["--in-file", first.to_str().unwrap()];
    let continued = collect("continued.gguf", &[&rest[..], &in_file].concat());
    let rest = collect("rest.gguf", &rest);
    let merged = dir.join("merged.gguf");
    let list = format!("{},{}", first.display(), rest.display());
    let merge = || specrun("imatrix").args(["--in-file", &list]);
    merge().arg("-o").arg(&merged).ok();
    assert_eq!(fs::read(&merged).unwrap(), fs::read(&continued).unwrap());
    let [whole, merged] = [whole, merged].map(|path| ImatrixFile::open(&path).unwrap());
    assert_eq!((merged.n_chunks, merged.datasets.len()), (6, 2));
    for (name, entry) in &whole.entries {
        assert_eq!(entry.counts, merged.entries[name].counts);
        let pairs = entry.squares.iter().zip(&merged.entries[name].squares);
        for (&one, &other) in pairs {
            assert_near(other.into(), one.into(), name);
        }
    }

    let dat = dir.join("m.dat");
    let to_dat = merge().args(["--output-format", "dat", "-o"]).arg(&dat);
    to_dat.ok();
    let found = ImatrixFile::open(&dat).unwrap();
    assert_eq!(found.entries.len(), merged.entries.len());
    let entry = &found.entries["blk.0.attn_qkv.weight"];
    let mean = merged.entries["blk.0.attn_qkv.weight"].squares[0] / (6.0 * 64.0);
    assert_near((entry.squares[0] / 6.0).into(), mean.into(), "mean");

    let shown = specrun("imatrix").args(["--show-statistics", "--in-file"]);
    let report = shown.arg(dir.join("whole.gguf")).json();
    assert_valid("imatrix", &report);
    assert_eq!(report["layers"].as_array().unwrap().len(), 4);
    let shown = specrun("imatrix").args(["--show-statistics", "--in-file"]);
    let shown = shown.arg(&dat).ok();
    assert!(shown.contains("blk.3.attn_q.weight"), "{shown}");
}

#[test]
fn an_interrupted_run_continues_to_the_same_bytes() {
    let dir = Dir::new();
    let model = bundled_f32(&dir);
    let out = dir.join("m.gguf");
    let run = |n_batch: &str| {
        let run = imatrix(&model, &text(), &out).args(["-c", "64", "--chunks", "9"]);
        run.args(["-b", n_batch, "--resume", "-ofreq", "1", "--nextn"])
    };
    // A copy that cannot be written ends the run after six chunks.
    let copy = dir.file("m.gguf.at_6", "");
    let error = run("128").args(["--save-frequency", "3"]).error();
    assert!(error.contains("m.gguf.at_6 exists"), "{error}");
    assert!(!out.exists());
    let at_3 = ImatrixFile::open(&dir.join("m.gguf.at_3")).unwrap();
    assert_eq!(at_3.n_chunks, 3);
    let state = ".m.gguf.imatrix-state";
    assert!(dir.names().contains(&state.to_owned()), "{:?}", dir.names());

    // Other options are refused; the batch is free.
    let other = run("128").args(["--from-chunk", "1"]).error();
    assert!(other.contains("belongs to another run"), "{other}");
    fs::remove_file(copy).unwrap();
    let report = run("50").json();
    let n_evaluated = report["n_chunks_evaluated"].as_u64().unwrap();
    assert!((3..9).contains(&n_evaluated), "{n_evaluated}");
    assert_eq!(report["n_chunks"], 9);
    assert!(
        !dir.names().contains(&state.to_owned()),
        "{:?}",
        dir.names()
    );
    let continued = fs::read(&out).unwrap();
    let whole = imatrix(&model, &text(), &dir.join("whole.gguf"));
    let whole = whole.args(["-c", "64", "--chunks", "9", "--nextn"]).json();
    assert_eq!(whole["perplexity"], report["perplexity"]);
    assert!(fs::read(dir.join("whole.gguf")).unwrap() == continued);
}

#[test]
fn what_cannot_be_collected_is_refused() {
    let dir = Dir::new();
    let model = bundled_f32(&dir);
    let text = short_text(&dir);
    let out = dir.join("m.gguf");
    let run = |model: &Path| specrun("imatrix").arg(model).arg("-o").arg(&out);
    let with_size = |model: &Path, n_ctx: &str| run(model).arg("-f").arg(&text).args(["-c", n_ctx]);
    let with_text = |model: &Path| with_size(model, "64");
    let cases = [
        (run(&model), "no text was given"),
        (
            with_size(&model, "4096"),
            "tokens, expected at least one chunk of 4096",
        ),
        (
            with_text(&model).args(["--from-chunk", "1000"]),
            "expected more than the 1000 that are skipped",
        ),
        (
            with_text(&model).arg("-md").arg(&model),
            "expected none with -md",
        ),
        (
            with_text(&model).arg("--in-file").arg(&model),
            "not an importance matrix",
        ),
    ];
    for (command, expected) in cases {
        let error = command.error();
        assert!(error.contains(expected), "{error}");
        assert!(!out.exists());
    }
    let plain = dir.convert(&reference("qwen3"), "qwen3.gguf", &[]);
    let error = with_text(&plain).arg("--nextn").error();
    assert!(error.contains("the model has no MTP head"), "{error}");
    let error = with_text(&plain).arg("-md").arg(&plain).error();
    assert!(error.contains("does not read hidden states"), "{error}");

    // Weights that are finite but overflow.
    let mut plan = gguf::open(&model).unwrap();
    let tensor = plan.tensors.iter_mut();
    let tensor = tensor
        .into_iter()
        .find(|tensor| tensor.name == "blk.2.ffn_up.weight");
    let tensor = tensor.unwrap();
    let row_bytes = tensor.row_bytes();
    let bytes = 1e38f32.to_le_bytes().repeat(tensor.n_elements() as usize);
    tensor.source = Arc::new(Owned { bytes, row_bytes });
    let damaged = dir.gguf("damaged.gguf", &plan);
    let error = with_text(&damaged).args(["--from-chunk", "2"]).error();
    let expected = "damaged.gguf: tensor blk.2.ffn_down.weight: chunk 3: column ";
    assert!(error.contains(expected), "{error}");
    assert!(!out.exists());
}
