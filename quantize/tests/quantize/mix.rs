//! The type of every tensor of real models, against what `llama-quantize --dry-run` says.
//!
//! A golden file has the model's keys and tensors for its head; `blk.{0-3,7}.` in front of a name
//! stands for these layers. A section for each file type follows. It lists the tensors that get
//! neither the type that is usual in this file type, nor, if they are F32, stay F32; a last line
//! counts the tensors that could not get the type that was meant for them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use quantize::{FType, QuantizeConfig, decide};
use schemas::gguf::{DType, Metadata, Owned, Plan, Tensor, Value};

/// Full names of `blk.{0-3,7}.rest`.
fn expand(name: &str) -> Vec<String> {
    let braces = name.strip_prefix("blk.{").and_then(|n| n.split_once("}."));
    let Some((layers, row)) = braces else {
        return vec![name.to_owned()];
    };
    let layers = layers.split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u32>().unwrap()..=last.parse().unwrap()
    });
    layers.map(|layer| format!("blk.{layer}.{row}")).collect()
}

fn value(kind: &str, text: &str) -> Value {
    let words = || text.split(' ');
    match kind {
        "str" => text.into(),
        "u32" => text.parse::<u32>().unwrap().into(),
        "f32" => text.parse::<f32>().unwrap().into(),
        "bool" => (text == "true").into(),
        "i32[]" => words()
            .map(|w| w.parse::<i32>().unwrap())
            .collect::<Vec<_>>()
            .into(),
        "bool[]" => words().map(|w| w == "true").collect::<Vec<_>>().into(),
        _ => panic!("value type {kind}"),
    }
}

fn model(head: &str) -> Plan {
    let mut plan = Plan::new(Metadata::new());
    // Types are decided without a look at the weights.
    let nothing = Arc::new(Owned {
        bytes: Vec::new(),
        row_bytes: 1,
    });
    for line in head.lines() {
        if let Some(rest) = line.strip_prefix("key ") {
            let mut parts = rest.splitn(3, ' ');
            let mut next = || parts.next().unwrap();
            let (key, kind) = (next(), next());
            plan.metadata.set(key, value(kind, next()));
        } else if let Some(rest) = line.strip_prefix("tensor ") {
            let mut words = rest.split(' ');
            let mut next = || words.next().unwrap();
            let dtype = DType::by_name(next()).unwrap();
            let names = expand(next());
            let shape: Vec<u64> = words.map(|w| w.parse().unwrap()).collect();
            plan.tensors.extend(
                names
                    .into_iter()
                    .map(|name| Tensor::new(name, shape.clone(), dtype, nothing.clone()).unwrap()),
            );
        }
    }
    plan
}

fn check(file: &str, plan: &Plan, section: &str) {
    let (name, lines) = section.split_once("]\n").unwrap();
    let ftype: FType = name.parse().unwrap();
    let usual = match ftype {
        FType::MXFP4_MOE => Some(DType::Q8_0),
        _ => ftype.default_dtype(),
    };
    let mut expected: HashMap<String, DType> = HashMap::new();
    for tensor in &plan.tensors {
        let dtype = usual.filter(|_| tensor.dtype != DType::F32);
        expected.insert(tensor.name.clone(), dtype.unwrap_or(tensor.dtype));
    }
    let mut n_unfit = 0;
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (first, rest) = line.split_once(' ').unwrap();
        match first {
            "fallback" => n_unfit = rest.parse().unwrap(),
            _ => {
                for name in expand(rest) {
                    let dtype = DType::by_name(first).unwrap();
                    assert!(expected.insert(name, dtype).is_some(), "{file}: {line}");
                }
            }
        }
    }
    let config = QuantizeConfig::new(ftype);
    let decisions = decide(plan, &config).unwrap();
    for decision in &decisions {
        let name = &decision.tensor;
        assert_eq!(decision.to, expected[name], "{file}: {ftype}: {name}");
    }
    assert_eq!(decisions.len(), plan.tensors.len(), "{file}");
    let unfit = decisions.iter().filter(|d| d.unfit.is_some()).count();
    assert_eq!(unfit, n_unfit, "{file}: {ftype}: fallbacks");
}

#[test]
fn types_are_those_of_the_peer() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantize/golden");
    let mut n_sections = 0;
    for entry in std::fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let mut sections = text.split("\n[");
        let plan = model(sections.next().unwrap());
        for section in sections {
            check(&path.display().to_string(), &plan, section);
            n_sections += 1;
        }
    }
    assert!(n_sections > 400, "{n_sections} sections found");
}
