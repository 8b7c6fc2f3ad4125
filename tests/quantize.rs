//! `specconv quantize` compared with the reference quantizer on the same files.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;

use fixtures::described;
use quantize::FType;
use schemas::gguf::{Plan, Value, open};

use crate::util::{Cmd, Dir, assert_golden, bundled, read_json, reference, root, sha256, specconv};

/// `specconv quantize`; several runs of a test write to one file.
fn rewriting() -> Cmd {
    specconv("quantize").arg("--overwrite")
}

/// Compares whole files by hash: every file type that we write, from both source types, and the body
/// and head of a model.
#[test]
fn files_equal_the_reference() {
    let golden = read_json(&reference("qwen35-256").join("quant.json"));
    let dir = Dir::new();
    let sources: [(&str, &[&str]); 4] = [
        ("f32", &["--outtype", "f32"]),
        ("bf16", &["--outtype", "bf16"]),
        ("mtp-f32", &["--outtype", "f32", "--mtp"]),
        ("no-mtp-f32", &["--outtype", "f32", "--no-mtp"]),
    ];
    let mut n_files = 0;
    for (source, flags) in sources {
        let input = dir.convert(&reference("qwen35-256"), "in.gguf", flags);
        for ftype in FType::all() {
            let case = format!("{source}/{ftype}");
            let Some(expected) = golden["outputs"].get(&case) else {
                continue;
            };
            let output = dir.join("out.gguf");
            let quantize = rewriting().arg(&input).arg(&output);
            let report = quantize.arg(ftype.name()).json();
            let bytes = fs::read(&output).unwrap();
            assert_eq!(bytes.len() as u64, expected["size"], "{case}");
            assert_eq!(sha256(&bytes), expected["sha256"], "{case}");
            assert_eq!(report["ftype"], ftype.name());
            assert_eq!(report["output"]["size_bytes"], bytes.len());
            n_files += 1;
        }
    }
    assert_eq!(n_files, 46);
}

/// Compares files made with flags. Keys record the path of the importance matrix, so it is passed the
/// same way.
#[test]
fn files_made_with_flags_equal_the_reference() {
    assert_eq!(
        check_files_made_with_flags("quant.json", "imatrix.gguf"),
        11
    );
}

/// Compares files of the types below four bits.
#[test]
fn files_of_low_bit_types_equal_the_reference() {
    let n_files = check_files_made_with_flags("quant-low.json", "imatrix-seeded.gguf");
    assert_eq!(n_files, 36);
}

/// Returns the number of files compared.
fn check_files_made_with_flags(golden: &str, imatrix: &str) -> usize {
    let checkpoint = reference("qwen35-256");
    let golden = read_json(&checkpoint.join(golden));
    let dir = Dir::new();
    let content = fs::read(checkpoint.join(imatrix)).unwrap();
    dir.file(&format!("qwen35-256-{imatrix}"), content);
    let mut n_files = 0;
    for source in ["f32", "bf16"] {
        dir.convert(&checkpoint, "in.gguf", &["--outtype", source]);
        for (case, expected) in golden["outputs"].as_object().unwrap() {
            let Some((of, variant)) = case.split_once('/') else {
                continue;
            };
            let (name, _) = variant.split_once('-').unwrap_or((variant, ""));
            let (Some(flags), Ok(ftype)) = (expected["flags"].as_array(), name.parse::<FType>())
            else {
                continue;
            };
            if of != source {
                continue;
            }
            let flags = flags.iter().map(|flag| flag.as_str().unwrap());
            let quantize = rewriting().current_dir(dir.path()).args(flags);
            quantize.args(["in.gguf", "out.gguf", ftype.name()]).ok();
            let bytes = fs::read(dir.join("out.gguf")).unwrap();
            assert_eq!(sha256(&bytes), expected["sha256"], "{case}");
            n_files += 1;
        }
    }
    n_files
}

/// Types with a grid need an importance matrix; where ggml would end its process, there is a message, too.
#[test]
fn types_that_need_an_importance_matrix_are_refused_without() {
    let checkpoint = reference("qwen35-256");
    let golden = read_json(&checkpoint.join("quant-low.json"));
    let dir = Dir::new();
    let imatrix = fs::read(checkpoint.join("imatrix-seeded.gguf")).unwrap();
    dir.file("qwen35-256-imatrix-seeded.gguf", imatrix);
    dir.convert(&checkpoint, "in.gguf", &["--outtype", "f32"]);
    for (case, expected) in golden["refused"].as_object().unwrap() {
        let (_, variant) = case.split_once('/').unwrap();
        let (ftype, _) = variant.split_once('-').unwrap_or((variant, ""));
        let flags = expected["flags"].as_array();
        let flags = flags
            .into_iter()
            .flatten()
            .map(|flag| flag.as_str().unwrap());
        let quantize = rewriting().current_dir(dir.path()).args(flags);
        let error = quantize.args(["in.gguf", "out.gguf", ftype]).error();
        assert!(
            error.contains("requires an importance matrix"),
            "{case}: {error}"
        );
        if let Some(tensor) = expected["tensor"].as_str() {
            assert!(
                error.contains(&format!("tensor {tensor}")),
                "{case}: {error}"
            );
        }
        assert!(!dir.join("out.gguf").exists(), "{case}");
    }
}

/// Blocks of zeros, ties, constants and weights of no importance, with and without an importance matrix.
#[test]
fn awkward_data_equals_the_reference() {
    let folder = reference("quantize").join("patterns");
    let golden = read_json(&folder.join("patterns.json"));
    let dir = Dir::new();
    for name in ["patterns.gguf", "patterns-imatrix.gguf"] {
        dir.file(name, fs::read(folder.join(name)).unwrap());
    }
    let outputs = golden["outputs"].as_object().unwrap();
    for (case, expected) in outputs {
        let flags = expected["flags"].as_array().unwrap();
        let flags = flags.iter().map(|flag| flag.as_str().unwrap());
        let quantize = rewriting().current_dir(dir.path()).args(flags);
        let ftype = expected["type"].as_str().unwrap();
        quantize.args(["patterns.gguf", "out.gguf", ftype]).ok();
        let bytes = fs::read(dir.join("out.gguf")).unwrap();
        assert_eq!(sha256(&bytes), expected["sha256"], "{case}");
    }
    assert_eq!(outputs.len(), 30);
}

#[test]
fn a_checkpoint_is_quantized_without_a_file_in_between() {
    let dir = Dir::new();
    let checkpoint = bundled("tiny-qwen35-mtp");
    let converted = dir.convert(&checkpoint, "f32.gguf", &["--outtype", "f32"]);
    let quantize = |input: &std::path::Path, name: &str| {
        let out = dir.join(name);
        let quantize = rewriting().arg(input).arg(&out).arg("q4_k_m");
        quantize.ok();
        fs::read(out).unwrap()
    };
    let two_steps = quantize(&converted, "two-steps.gguf");
    assert!(two_steps == quantize(&checkpoint, "one-step.gguf"));
    assert_eq!(dir.names(), ["f32.gguf", "one-step.gguf", "two-steps.gguf"]);
}

#[test]
fn the_output_may_be_left_out_and_threads_change_nothing() {
    let dir = Dir::new();
    let input = dir.convert(&bundled("tiny-draft"), "in.gguf", &["--outtype", "f32"]);
    rewriting().arg(&input).args(["Q4_K_M", "1"]).ok();
    let out = dir.join("out.gguf");
    let with_out = rewriting().arg(&input).arg(&out);
    with_out.args(["Q4_K_M", "--threads", "5"]).ok();
    assert_eq!(
        dir.names(),
        ["ggml-model-Q4_K_M.gguf", "in.gguf", "out.gguf"]
    );
    assert!(fs::read(dir.join("ggml-model-Q4_K_M.gguf")).unwrap() == fs::read(out).unwrap());
}

#[test]
fn rules_can_be_in_a_file_and_a_dry_run_writes_nothing() {
    let dir = Dir::new();
    dir.convert(&bundled("tiny-draft"), "in.gguf", &["--outtype", "f32"]);
    dir.file("types.txt", "attn_v=q8_0\n  ffn_down=q5_1 ");
    let quantize = || rewriting().current_dir(dir.path());
    let rules = [
        "--tensor-type",
        "attn_v=q8_0",
        "--tensor-type",
        "ffn_down=q5_1",
    ];
    quantize()
        .args(rules)
        .args(["in.gguf", "a.gguf", "q4_0"])
        .ok();
    let rules = ["--tensor-type-file", "types.txt"];
    quantize()
        .args(rules)
        .args(["in.gguf", "b.gguf", "q4_0"])
        .ok();
    assert!(fs::read(dir.join("a.gguf")).unwrap() == fs::read(dir.join("b.gguf")).unwrap());
    let text = quantize()
        .args(["--dry-run", "in.gguf", "c.gguf", "q4_0"])
        .ok();
    assert!(text.contains("\nwould write c.gguf: "), "{text}");
    assert!(text.contains("\ntensor data "), "{text}");
    assert_eq!(dir.names(), ["a.gguf", "b.gguf", "in.gguf", "types.txt"]);
}

#[test]
fn what_is_no_type_is_named() {
    let dir = Dir::new();
    let input = dir.convert(&bundled("tiny-draft"), "in.gguf", &[]);
    let quantize = |words: &[&str]| rewriting().arg(&input).args(words).error();
    assert!(quantize(&["out.gguf", "Q9_X"]).contains("\"Q9_X\""));
    assert!(quantize(&["Q9_X"]).contains("\"Q9_X\""));
    assert!(quantize(&["out.gguf", "Q8_0", "many"]).contains("\"many\""));
}

/// Writes a model, or its shards, and returns the path of the first file.
fn write_model(dir: &Dir, mut parts: Vec<Plan>) -> std::path::PathBuf {
    let n_parts = parts.len();
    if n_parts == 1 {
        return dir.gguf("model.gguf", &parts[0]);
    }
    let n_tensors: usize = parts.iter().map(|part| part.tensors.len()).sum();
    for (no, part) in parts.iter_mut().enumerate() {
        part.metadata.set("split.no", no as u16);
        part.metadata.set("split.count", n_parts as u16);
        part.metadata.set("split.tensors.count", n_tensors as i32);
        let name = format!("model-{:05}-of-{n_parts:05}.gguf", no + 1);
        dir.gguf(&name, part);
    }
    dir.join(&format!("model-00001-of-{n_parts:05}.gguf"))
}

/// Runs with flags on the models described in tests/reference/quantize: experts, pruned
/// layers, split models, files that do not state their type.
#[test]
fn runs_on_described_models_equal_the_reference() {
    let mut n_runs = 0;
    for entry in fs::read_dir(reference("quantize")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let (head, runs) = text.split_once("\nrun ").unwrap();
        let (model, imatrix) = head.split_once("\nimatrix\n").unwrap_or((head, ""));
        let dir = Dir::new();
        let input = write_model(&dir, described(model));
        dir.gguf("imatrix.gguf", &described(imatrix)[0]);
        for run in runs.split("\nrun ") {
            let (flags, files) = run.split_once('\n').unwrap();
            let (flags, ftype) = flags.rsplit_once(' ').unwrap_or(("", flags));
            let quantize = rewriting().current_dir(dir.path());
            let (flags, input) = match flags.strip_prefix("again") {
                Some(flags) => (flags, dir.join("previous.gguf")),
                None => (flags, input.clone()),
            };
            let quantize = quantize.args(flags.split_whitespace());
            quantize.arg(&input).args(["out.gguf", ftype]).ok();
            for file in files.lines() {
                let [name, size, sha] = file.split(' ').collect::<Vec<_>>()[..] else {
                    panic!("{file}: expected name, size and hash");
                };
                let bytes = fs::read(dir.join(name)).unwrap();
                let found = format!("{} {}", bytes.len(), sha256(&bytes));
                assert_eq!(found, format!("{size} {sha}"), "{}: {run}", path.display());
                fs::rename(dir.join(name), dir.join("previous.gguf")).unwrap();
            }
            n_runs += 1;
        }
    }
    assert_eq!(n_runs, 36);
}

#[test]
fn a_split_model_is_opened_by_its_first_part() {
    let text = fs::read_to_string(reference("quantize").join("parts.txt")).unwrap();
    let (model, _) = text.split_once("\nrun ").unwrap();
    let dir = Dir::new();
    write_model(&dir, described(model));
    let part = dir.join("model-00002-of-00003.gguf");
    let error = rewriting().arg(&part).arg("Q8_0").error();
    assert!(
        error.ends_with("shard 2 of 3 of a split model; open the first shard instead"),
        "{error}"
    );
    fs::remove_file(dir.join("model-00003-of-00003.gguf")).unwrap();
    let first = dir.join("model-00001-of-00003.gguf");
    let error = rewriting().arg(&first).arg("Q8_0").error();
    assert!(error.contains("model-00003-of-00003.gguf"), "{error}");
}

/// Returns a model with a key that has one entry per layer.
fn per_layer_model() -> Plan {
    let text = fs::read_to_string(reference("quantize").join("layers.txt")).unwrap();
    let (head, _) = text.split_once("\nimatrix\n").unwrap();
    let mut plan = described(head).remove(0);
    let heads: Vec<u32> = (0..8).collect();
    plan.metadata.set("llama.attention.head_count_kv", heads);
    plan
}

#[test]
fn keys_of_pruned_layers_go_with_them() {
    let dir = Dir::new();
    let input = dir.gguf("in.gguf", &per_layer_model());
    let out = dir.join("out.gguf");
    let quantize = rewriting().arg("--prune-layers=3,7").arg(&input);
    let report = quantize.arg(&out).arg("q8_0").json();
    assert_eq!(
        report["notes"][0],
        "key llama.attention.head_count_kv: shortened to the remaining layers"
    );
    let out = open(&out).unwrap();
    let heads = out.metadata.u32s("llama.attention.head_count_kv");
    assert_eq!(heads, Ok(Some(vec![0, 1, 2, 4, 5, 6])));
    assert_eq!(out.metadata.get("llama.block_count"), Some(&Value::U32(6)));
    let error = |layers: &str| {
        let quantize = rewriting().args(["--prune-layers", layers]);
        quantize.arg(&input).arg("q8_0").error()
    };
    assert!(error("8").ends_with("layer 8 cannot be pruned: the file has the layers 0 to 7"));
    assert!(error("0,1,2,3,4,5,6,7").contains("all 8 layers of the file would be pruned"));
}

/// A dry run prints the exact sizes, types and notes of the real run.
#[test]
fn a_dry_run_prints_the_plan() {
    let dir = Dir::new();
    dir.convert(&reference("qwen35-256"), "in.gguf", &[]);
    let imatrix = fs::read(reference("qwen35-256").join("imatrix.gguf")).unwrap();
    dir.file("imatrix.gguf", imatrix);
    let quantize = || {
        let quantize = rewriting().current_dir(dir.path());
        let quantize = quantize.args(["--imatrix", "imatrix.gguf", "--mtp-type", "q8_0"]);
        quantize.args([
            "--tensor-type",
            "attn_gate=q5_k",
            "in.gguf",
            "out.gguf",
            "Q4_K_M",
        ])
    };
    let text = quantize().arg("--dry-run").ok();
    assert_golden("quantize/dry-run.txt", &text);
    let planned = quantize().arg("--dry-run").json();
    assert!(!dir.names().contains(&"out.gguf".to_owned()));
    let made = quantize().json();
    for key in ["tensors", "notes", "bits_per_weight"] {
        assert_eq!(planned[key], made[key], "{key}");
    }
    let file = fs::metadata(dir.join("out.gguf")).unwrap();
    assert_eq!(planned["output"]["size_bytes"], file.len());
    for (tensor, planned) in open(&dir.join("out.gguf"))
        .unwrap()
        .tensors
        .iter()
        .zip(planned["tensors"].as_array().unwrap())
    {
        assert_eq!(planned["name"], tensor.name);
        assert_eq!(planned["to"], tensor.dtype.to_string());
        assert_eq!(planned["size_after_bytes"], tensor.size_bytes);
    }
}

/// RMS errors are measured while quantizing and do not depend on the threads.
#[test]
fn errors_do_not_depend_on_threads() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen35-256"), "in.gguf", &[]);
    let errors = |threads: &str| -> Vec<(String, Option<f64>)> {
        let quantize = rewriting().arg(&input).arg(dir.join("out.gguf"));
        let report = quantize.args(["Q4_K_M", threads]).json();
        let types = report["types"].as_array().unwrap().iter();
        types
            .map(|t| (t["dtype"].to_string(), t["rmse"].as_f64()))
            .collect()
    };
    let one = errors("1");
    assert_eq!(one, errors("7"));
    let of = |dtype: &str| one.iter().find(|(name, _)| name.contains(dtype)).unwrap().1;
    assert_eq!(of("F32"), None, "copied");
    let (q4, q6) = (of("Q4_K").unwrap(), of("Q6_K").unwrap());
    // Computed from gguf-py's dequantization of both files, in double precision.
    for (found, expected) in [(q4, 0.010204193431891837), (q6, 0.0011192518802856097)] {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn an_imatrix_of_another_model_is_rejected_and_gaps_are_noted() {
    let dir = Dir::new();
    let imatrix = reference("qwen35-256").join("imatrix.gguf");
    let quantize = |input: &Path| {
        let quantize = rewriting().arg("--imatrix").arg(&imatrix);
        quantize.arg(input).arg(dir.join("out.gguf")).arg("Q4_K_M")
    };
    let other = dir.gguf("other.gguf", &per_layer_model());
    let error = quantize(&other).error();
    assert!(
        error.contains("entries match") || error.contains("of another model"),
        "{error}"
    );
    assert!(!dir.names().contains(&"out.gguf".to_owned()));
    let input = dir.convert(&reference("qwen35-256"), "in.gguf", &[]);
    let report = quantize(&input).arg("--exclude-weights=blk.4.").json();
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("tensor blk.4.attn_k.weight, ") && notes.contains("only with --nextn"),
        "{notes}"
    );
}

#[test]
fn several_types_are_written_at_once() {
    let dir = Dir::new();
    dir.convert(&bundled("tiny-draft"), "in.gguf", &[]);
    let quantize = || rewriting().current_dir(dir.path());
    quantize()
        .args(["in.gguf", "m-{ftype}.gguf", "Q4_K_M,q8_0"])
        .ok();
    assert_eq!(dir.names(), ["in.gguf", "m-q4_k_m.gguf", "m-q8_0.gguf"]);
    quantize().args(["in.gguf", "alone.gguf", "Q8_0"]).ok();
    assert!(
        fs::read(dir.join("alone.gguf")).unwrap() == fs::read(dir.join("m-q8_0.gguf")).unwrap()
    );
    let error = quantize()
        .args(["in.gguf", "m.gguf", "Q4_K_M,q8_0"])
        .error();
    assert!(
        error.starts_with("m.gguf: one name for 2 files, expected {ftype} in it"),
        "{error}"
    );
    let reports = quantize()
        .args(["in.gguf", "n-{FTYPE}.gguf", "Q4_0,Q5_0"])
        .json();
    assert_eq!(reports.as_array().unwrap().len(), 2);
    assert_eq!(reports[1]["output"]["path"], "n-Q5_0.gguf");
}

/// Runs the unmodified example of docs/recipes.md.
#[test]
fn the_recipe_of_the_documentation_works() {
    let document = fs::read_to_string(root().join("docs/recipes.md")).unwrap();
    let (_, recipe) = document.split_once("```toml\n").unwrap();
    let (recipe, _) = recipe.split_once("```").unwrap();
    let dir = Dir::new();
    dir.file("recipe.toml", recipe);
    dir.convert(
        &reference("qwen35-256"),
        "model-BF16.gguf",
        &["--outtype", "bf16"],
    );
    let imatrix = fs::read(reference("qwen35-256").join("imatrix.gguf")).unwrap();
    dir.file("model.imatrix.gguf", imatrix);
    let quantize = || rewriting().current_dir(dir.path());
    let with_recipe = || quantize().args(["--recipe", "recipe.toml"]);
    with_recipe().ok();
    let flags = ["--imatrix", "model.imatrix.gguf", "--mtp-type", "Q8_0"];
    let flags = quantize()
        .args(flags)
        .args(["--tensor-type", "ffn_down=Q6_K"]);
    let flags = flags.args(["--override-kv", "general.author=str:me"]);
    flags
        .args(["model-BF16.gguf", "by-flags.gguf", "Q5_K_M"])
        .ok();
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    assert!(read("model-Q5_K_M.gguf") == read("by-flags.gguf"));
    with_recipe().args(["--mtp-type=Q4_0", "Q6_K"]).ok();
    assert!(
        dir.join("model-Q6_K.gguf").exists(),
        "a flag and a word override the recipe"
    );
    let printed = with_recipe()
        .args(["--print-recipe", "--pure", "Q6_K"])
        .ok();
    assert!(printed.contains("type = \"Q6_K\"\n") && printed.contains("pure = true\n"));
    dir.file("printed.toml", &printed);
    let again = quantize()
        .args(["--recipe", "printed.toml", "--print-recipe"])
        .ok();
    assert_eq!(again, printed);
    dir.file("bad.toml", "type = \"Q4_K_M\"\npruned-layers = [1]\n");
    assert!(quantize().args(["--recipe", "bad.toml"]).error().starts_with(
        "bad.toml:2:1: key pruned-layers (did you mean prune-layers?): expected one of in, out"
    ));
}

#[test]
fn names_need_not_be_text() {
    let dir = Dir::new();
    let input = dir.convert(&bundled("tiny-draft"), "in.gguf", &[]);
    let name = std::ffi::OsStr::from_bytes(b"out-\xff.gguf");
    let out = dir.path().join(name);
    rewriting().arg(&input).arg(&out).arg("Q8_0").ok();
    assert!(open(&out).is_ok());
}

#[test]
fn an_input_is_not_replaced_under_another_name() {
    let dir = Dir::new();
    let input = dir.convert(&bundled("tiny-draft"), "in.gguf", &[]);
    let before = fs::read(&input).unwrap();
    fs::hard_link(&input, dir.join("hard.gguf")).unwrap();
    std::os::unix::fs::symlink(&input, dir.join("soft.gguf")).unwrap();
    for name in ["in.gguf", "hard.gguf", "soft.gguf"] {
        let quantize = rewriting().arg(&input).arg(dir.join(name));
        let error = quantize.arg("Q8_0").error();
        assert!(
            error.ends_with("output is also an input, expected another file"),
            "{error}"
        );
    }
    assert!(fs::read(&input).unwrap() == before);
}

#[test]
fn nan_in_the_data_is_an_error_with_its_position() {
    let dir = Dir::new();
    let plan = per_layer_model();
    let input = dir.gguf("in.gguf", &plan);
    let written = open(&input).unwrap();
    let tensor = written.tensor("blk.2.ffn_up.weight").unwrap();
    let offset = tensor.source.origin().unwrap().offset as usize;
    let mut bytes = fs::read(&input).unwrap();
    bytes[offset + 2 * 300..][..2].copy_from_slice(&0x7e00u16.to_le_bytes());
    fs::write(&input, &bytes).unwrap();
    let out = dir.join("out.gguf");
    let error = rewriting().arg(&input).arg(&out).arg("Q4_K_M").error();
    assert!(
        error.contains("tensor blk.2.ffn_up.weight")
            && error.contains("in.gguf")
            && error.contains("NaN in the F16 source, element 300 (row 1, column 44)"),
        "{error}"
    );
    assert_eq!(dir.names(), ["in.gguf"], "no file remains");
    fs::write(&input, &bytes[..bytes.len() / 2]).unwrap();
    let error = rewriting().arg(&input).arg(&out).arg("Q4_K_M").error();
    assert!(error.contains("in.gguf"), "{error}");
    assert_eq!(dir.names(), ["in.gguf"]);
}

/// A killed process leaves no file under the final name. The next one resumes from the partial file,
/// writes the same bytes and leaves no other file.
#[test]
fn a_killed_run_is_resumed_to_the_same_bytes() {
    let dir = Dir::new();
    let input = dir.convert(&reference("qwen35-256"), "in.gguf", &["--outtype", "f32"]);
    let run = |out: &Path, flags: [&str; 3]| {
        let quantize = rewriting().arg("--resume").arg(&input).arg(out);
        quantize.args(flags)
    };
    // Options that do not affect the output bytes may change between the runs.
    let quantize = |out: &Path| run(out, ["--max-buffer-size=1", "Q4_K_M", "2"]);
    let resume = |out: &Path| run(out, ["Q4_K_M", "1", "--isa=scalar"]);
    let whole = dir.join("whole.gguf");
    quantize(&whole).ok();
    let expected = fs::read(&whole).unwrap();
    let out = dir.join("out.gguf");
    let mut state = 1u64;
    for i in 0..20 {
        let mut command = quantize(&out).into_command();
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        // Kill after a pseudo-random number of polls of the child.
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        for _ in 0..state >> 48 {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if out.exists() {
            assert!(
                fs::read(&out).unwrap() == expected,
                "kill {i}: a part has the final name"
            );
        }
        resume(&out).ok();
        assert!(fs::read(&out).unwrap() == expected, "kill {i}");
        assert_eq!(
            dir.names(),
            ["in.gguf", "out.gguf", "whole.gguf"],
            "kill {i}"
        );
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn slips_get_a_suggestion() {
    let dir = Dir::new();
    let input = dir.convert(&bundled("tiny-draft"), "in.gguf", &[]);
    let error = rewriting().arg(&input).arg("Q4_KM").error();
    assert!(error.contains("(did you mean Q4_K_M?)"), "{error}");
    let flag = |flag: &str| {
        let ran = rewriting().arg(flag).arg(&input).arg("Q8_0").run();
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        ran.stderr
    };
    assert!(flag("--mtp-type=q8").contains("(did you mean Q8_0?)"));
    let error = flag("--tensor-type=ffn_(up|down=q8_0");
    assert!(error.contains("pattern \"ffn_(up|down\", byte "), "{error}");
}
