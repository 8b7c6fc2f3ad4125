//! Types of all tensors of real models, compared with `llama-quantize --dry-run`.
//!
//! A golden file starts with the model's keys and tensors; the prefix `blk.{0-3,7}.` of a name
//! means these layers. One section per file type follows. It lists the tensors that do not get the
//! usual type of the file type (for F32 tensors: F32); the last line counts the tensors that could
//! not get their preferred type.

use std::collections::HashMap;
use std::path::Path;

use fixtures::{described, expand};
use quantize::{FType, QuantizeConfig, decide};
use schemas::gguf::{DType, Plan};

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
        let [plan] = &described(sections.next().unwrap())[..] else {
            panic!("{}: expected a model in one part", path.display());
        };
        for section in sections {
            check(&path.display().to_string(), plan, section);
            n_sections += 1;
        }
    }
    assert!(n_sections > 400, "{n_sections} sections found");
}
