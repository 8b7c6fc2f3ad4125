//! Compares conversions with files written by llama.cpp's converter: whole files by hash, and if they
//! differ, the first key-value or tensor that is different.

use std::path::{Path, PathBuf};

use convert::{ConvertConfig, Converted, MtpMode, OutType, plan};
use schemas::gguf::{Output, Plan, Value, WriteConfig, write};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/reference");

fn read_json(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the configuration for the reference's arguments; `None` for unsupported ones.
fn config(checkpoint: PathBuf, args: &[&str]) -> Option<ConvertConfig> {
    let mut config = ConvertConfig {
        checkpoint,
        remote: None,
        outtype: OutType::Auto,
        mtp: MtpMode::Inline,
        clusters: true,
        tokenizer_from: None,
        target: None,
    };
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        match arg {
            "--outtype" => config.outtype = args.next()?.parse().ok()?,
            "--mtp" => config.mtp = MtpMode::Only,
            "--no-mtp" => config.mtp = MtpMode::Without,
            "--dspark" => config.mtp = MtpMode::DSpark,
            _ => return None,
        }
    }
    Some(config)
}

/// Returns a value in the reference's notation.
fn notation(value: &Value) -> (&'static str, Option<&'static str>, Json) {
    let name = |value: &Value| match value {
        Value::U16(_) => "uint16",
        Value::U32(_) => "uint32",
        Value::I32(_) => "int32",
        Value::F32(_) => "float32",
        Value::Bool(_) => "bool",
        Value::String(_) => "string",
        other => panic!("no reference has a {other:?}"),
    };
    let json = |value: &Value| match value {
        Value::U16(v) => (*v).into(),
        Value::U32(v) => (*v).into(),
        Value::I32(v) => (*v).into(),
        Value::F32(v) => f64::from(*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => v.to_string().into(),
        other => panic!("no reference has a {other:?}"),
    };
    match value {
        Value::Array(array) => {
            let items: Vec<_> = (0..array.len()).filter_map(|i| array.get(i)).collect();
            let item = items.first().map(name);
            ("array", item, items.iter().map(json).collect())
        }
        scalar => (name(scalar), None, json(scalar)),
    }
}

/// Returns the differences in key-values, in the reference's order.
fn compare_metadata(plan: &Plan, golden: &Json, arrays: &Json) -> Vec<String> {
    let mut differences = Vec::new();
    let expected = golden["kv"].as_array().expect("a list");
    let keys: Vec<_> = expected
        .iter()
        .map(|kv| kv["key"].as_str().unwrap())
        .collect();
    let found: Vec<_> = plan.metadata.iter().map(|(key, _)| key).collect();
    if keys != found {
        differences.push(format!("keys: expected {keys:?}\nfound {found:?}"));
    }
    for kv in expected {
        let key = kv["key"].as_str().unwrap();
        let Some(value) = plan.metadata.get(key) else {
            continue;
        };
        let (kind, item, json) = notation(value);
        let expected = match kv["ref"].as_str() {
            Some(reference) => &arrays[reference],
            None => &kv["value"],
        };
        if kv["type"] != kind || kv["item"].as_str() != item || *expected != json {
            differences.push(format!("{key}: expected {kv}, found {kind} {value}"));
        }
    }
    differences
}

/// Returns the differences in tensors: order, shapes, types, bytes.
fn compare_tensors(plan: &Plan, golden: &Json) -> Vec<String> {
    let mut differences = Vec::new();
    let expected = golden["tensors"].as_array().expect("a list");
    if expected.len() != plan.tensors.len() {
        let found = plan.tensors.len();
        differences.push(format!(
            "expected {} tensors, found {found}",
            expected.len()
        ));
    }
    for (tensor, expected) in plan.tensors.iter().zip(expected) {
        let shape: Vec<_> = expected["shape"].as_array().unwrap().clone();
        let shape: Vec<_> = shape.iter().map(|n| n.as_u64().unwrap()).collect();
        let head = (
            expected["name"].as_str().unwrap().to_owned(),
            shape,
            expected["type"].as_str().unwrap().to_owned(),
        );
        let found = (
            tensor.name.clone(),
            tensor.shape.clone(),
            tensor.dtype.to_string(),
        );
        if head != found {
            differences.push(format!("tensor: expected {head:?}, found {found:?}"));
            continue;
        }
        let bytes = tensor.read_all().expect("reference weights are in range");
        if expected["sha256"] != sha256(&bytes) {
            differences.push(format!("tensor {}: other bytes", tensor.name));
        }
    }
    differences
}

/// Returns the bytes of a converted file.
fn file_bytes(converted: &Converted) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(&converted.default_name);
    write(
        &[Output {
            plan: &converted.plan,
            path: &path,
        }],
        &WriteConfig::new(),
    )
    .expect("the disk has room");
    std::fs::read(&path).expect("was just written")
}

fn check(name: &str, at_least: usize) {
    let folder = Path::new(REFERENCE).join(name);
    let golden = read_json(&folder.join("golden.json"));
    let mut n_checked = 0;
    for (mode, output) in golden["outputs"].as_object().expect("an object") {
        let args = output["args"].as_array().expect("a list").iter();
        let args: Vec<_> = args.map(|arg| arg.as_str().unwrap()).collect();
        let Some(mut config) = config(folder.clone(), &args) else {
            continue;
        };
        config.target = golden["target"]
            .as_str()
            .map(|target| Path::new(REFERENCE).join(target));
        let converted = plan(&config).unwrap_or_else(|e| panic!("{name} {mode}: {e}"));
        let mut differences = compare_metadata(&converted.plan, output, &golden["arrays"]);
        differences.extend(compare_tensors(&converted.plan, output));
        let bytes = file_bytes(&converted);
        if output["size"] != bytes.len() || output["sha256"] != sha256(&bytes) {
            differences.push(format!("the file: {} bytes, other content", bytes.len()));
        }
        assert!(
            differences.is_empty(),
            "{name} {mode} {args:?}:\n{}",
            differences.join("\n")
        );
        n_checked += 1;
    }
    assert!(n_checked >= at_least, "{name}: {n_checked} outputs checked");
}

#[test]
fn llama() {
    check("llama", 5);
}

#[test]
fn llama_with_pieces() {
    check("llama-spm", 5);
}

#[test]
fn scaled_positions() {
    for name in ["llama3-rope", "linear-rope", "yarn-rope"] {
        check(name, 5);
    }
}

#[test]
fn mistral() {
    check("mistral", 5);
}

#[test]
fn mixtral() {
    check("mixtral", 5);
}

/// llama.cpp leaves out the head with this class; the expected file was made with another class name.
#[test]
fn deepseek() {
    check("deepseek2", 13);
    check("deepseek2-lite", 5);
}

#[test]
fn glm4moelite() {
    check("glm4moelite", 13);
}

/// Two heads after the trunk, and three that are numbered from zero.
#[test]
fn chained_heads() {
    check("step35", 12);
    check("mimo2", 12);
}

#[test]
fn gemma4() {
    check("gemma4", 5);
    check("gemma4moe", 5);
    check("gemma4-assistant", 5);
}

/// Blocks with one part each; the head has two layers of the checkpoint in one block.
#[test]
fn nemotron_h() {
    check("nemotronh", 5);
    check("nemotronhmoe", 13);
}

/// The head is a sidecar, because it mixes the streams with weights of its own.
#[test]
fn deepseek4() {
    check("deepseek4", 10);
    check("deepseek4-mtp", 10);
    check("deepseek4-bf16", 2);
    check("deepseek4-dspark", 1);
}

#[test]
fn gpt_oss() {
    check("gpt-oss", 5);
    check("gpt-oss-bf16", 5);
}

#[test]
fn qwen3() {
    check("qwen3", 5);
}

#[test]
fn qwen35() {
    check("qwen35", 13);
}

#[test]
fn qwen2() {
    check("qwen2", 5);
}

#[test]
fn qwen3moe() {
    check("qwen3moe", 5);
}

#[test]
fn qwen3next() {
    check("qwen3next", 13);
}

#[test]
fn gemma3() {
    check("gemma3", 5);
}

#[test]
fn glm4moe() {
    check("glm4moe", 13);
}

#[test]
fn qwen35moe() {
    check("qwen35moe", 13);
}

#[test]
fn qwen35_quantizable() {
    check("qwen35-256", 13);
}

#[test]
fn eagle3() {
    check("eagle3-qwen3", 4);
}

#[test]
fn block_drafts() {
    check("dflash-qwen3", 4);
    check("dspark-qwen3", 4);
}

/// Trained models, whose tokenizers are not in llama.cpp's table of digests: hashes of the files that
/// llama.cpp b11434 writes if the pre-tokenizer is given.
#[test]
fn trained_models() {
    use MtpMode::{Inline, Only, Without};
    use OutType::{BF16, Q8_0};
    let models = Path::new(REFERENCE).join("../../models");
    for (name, target, outtype, mtp, expected) in [
        (
            "tiny-qwen35-mtp",
            None::<&str>,
            BF16,
            Inline,
            "0d37a4e1d3f71245e46585b6405292f97c9331cb2f637f93b871c166d5f63e15",
        ),
        (
            "tiny-qwen35-mtp",
            None,
            BF16,
            Only,
            "e746026e32aefc987eedf594c5a914fd61257029dab42a10aca9b7c14317e86c",
        ),
        (
            "tiny-qwen35-mtp",
            None,
            Q8_0,
            Inline,
            "303c45532e8ce7c087d7f6890995e4c5b6ae0fec08c1fd4328d5e29d00124433",
        ),
        (
            "tiny-qwen35-mtp",
            None,
            Q8_0,
            Without,
            "a545de20d7fcd77b062d91629290f7ce8358f12939fc097dfe869047c974a4b3",
        ),
        (
            "tiny-draft",
            None,
            BF16,
            Inline,
            "160720dba5b58b0413749b4a34fe84cdef87fc38d754a5ac924d573e55feba9b",
        ),
        (
            "tiny-draft",
            None,
            Q8_0,
            Inline,
            "02528f50db44163a7954d54ba09513a7e663175460fae1928c6604e0940b1eb6",
        ),
        (
            "tiny-eagle3",
            Some("tiny-qwen35-mtp"),
            BF16,
            Inline,
            "826c6bda0d5b732996abda7b1e4c65853b8cf7ba025049dbaa3ce7c8152f1edf",
        ),
        (
            "tiny-eagle3",
            Some("tiny-qwen35-mtp"),
            Q8_0,
            Inline,
            "b1ad29df1e0224ffddae35960103a33386666847d457f58bb54e8a0f5a06c712",
        ),
    ] {
        let config = ConvertConfig {
            checkpoint: models.join(name),
            remote: None,
            outtype,
            mtp,
            clusters: true,
            tokenizer_from: None,
            target: target.map(|target| models.join(target)),
        };
        let converted = plan(&config).unwrap_or_else(|e| panic!("{name}: {e}"));
        let pre = converted.plan.metadata.str("tokenizer.ggml.pre");
        assert_eq!(pre, Ok(Some("qwen35")), "{name}");
        let found = sha256(&file_bytes(&converted));
        assert_eq!(found, expected, "{name} {outtype} {mtp:?}");
    }
}
