//! Heads of every architecture of the table: files of each are split, grafted and repaired without
//! loss, and damaged ones are refused with the name of the tensor.

use fixtures::heads::{Form, N_EMBD, N_LAYER, in_head, tensors_of};
use graft::{diagnose, repair_mtp, split_mtp};
use schemas::arch::heads::{HeadSpec, find, heads};
use schemas::arch::nextn::head_tensors;
use schemas::arch::{Need, by_name, keys};
use schemas::gguf::{DType, Metadata, Plan, Tensor};

use crate::model::{self, graft_mtp};

/// Returns a model with types that are not known, which are copied as they are.
fn model_of(head: HeadSpec, form: Form) -> Plan {
    let mut plan = fixtures::heads::model_of(head, form);
    for (seed, tensor) in plan.tensors.iter_mut().enumerate() {
        *tensor = model::tensor(&tensor.name, tensor.shape.clone(), DType(77), seed);
    }
    plan
}

/// Name, shape and bytes of a tensor.
type Content = (String, Vec<u64>, Vec<u8>);

/// Returns everything that a file has.
fn contents(plan: &Plan) -> (Metadata, Vec<Content>) {
    let tensor = |t: &Tensor| (t.name.clone(), t.shape.clone(), t.read_all().unwrap());
    let tensors = plan.tensors.iter().map(tensor).collect();
    (plan.metadata.clone(), tensors)
}

/// Returns a head of every architecture in every form.
fn all_forms() -> impl Iterator<Item = (HeadSpec, Form)> {
    heads().flat_map(|head| [(head, Form::Separate), (head, Form::Fused)])
}

#[test]
fn every_family_is_split_and_grafted() {
    for (head, form) in all_forms() {
        let arch = head.arch;
        let whole = model_of(head, form);
        assert_eq!(diagnose(&whole), [], "{arch}");
        let halves = split_mtp(&whole).unwrap();
        let value = |key: &str| {
            let key = format!("{arch}.{key}");
            halves.body.metadata.get(&key).map(ToString::to_string)
        };
        assert_eq!(value("block_count").as_deref(), Some("3"));
        assert_eq!(value("nextn_predict_layers"), None);
        assert_eq!(value("attention.head_count").as_deref(), Some("[2, 2, 4]"));
        assert_eq!(
            value("ple.layer_multipliers").as_deref(),
            Some("[1, 2, 3, 4]")
        );
        let again = graft_mtp(&halves.body, &halves.mtp).unwrap();
        assert!(contents(&again) == contents(&whole), "{arch} {form:?}");
        let replaced = graft::replace_mtp(&whole, &halves.mtp, &Default::default()).unwrap();
        assert!(contents(&replaced) == contents(&whole), "{arch} {form:?}");

        // Some donors are distributed as tensors without keys.
        let mut bare = halves.mtp.clone();
        bare.metadata = Metadata::new();
        bare.tensors.retain(|tensor| tensor.layer().is_some());
        let mut body = halves.body.clone();
        let key = format!("{arch}.attention.head_count");
        body.metadata.set(key, 2u32);
        let again = graft_mtp(&body, &bare).unwrap();
        assert!(contents(&again).1 == contents(&whole).1, "{arch} {form:?}");
    }
}

/// A sidecar whose head is in block 0 is repaired without loss.
#[test]
fn every_family_is_repaired() {
    for (head, form) in all_forms() {
        let sidecar = split_mtp(&model_of(head, form)).unwrap().mtp;
        let mut misplaced = sidecar.clone();
        for tensor in &mut misplaced.tensors {
            let name = tensor.name.replace(&format!("blk.{N_LAYER}."), "blk.0.");
            tensor.name = name;
        }
        let repaired = repair_mtp(&misplaced, None).unwrap();
        assert_eq!(repaired.faults.len(), 1, "{}", head.arch);
        let found = contents(&repaired.plan);
        assert!(found == contents(&sidecar), "{}", head.arch);
    }
}

/// Every tensor that a head needs is named if it is missing.
#[test]
fn missing_tensors_are_named() {
    for (head, form) in all_forms() {
        let whole = model_of(head, form);
        let fused = |name| head.tensors().iter().any(|t| t.replaced_by == Some(name));
        for tensor in tensors_of(head, form) {
            if tensor.need == Need::Optional && !fused(tensor.name) {
                continue;
            }
            let mut damaged = whole.clone();
            let name = in_head(&tensor);
            damaged.tensors.retain(|tensor| tensor.name != name);
            let error = split_mtp(&damaged).map(|_| ()).unwrap_err().to_string();
            // Of a missing fused tensor, the first one that it replaces is named.
            let mut all = head.tensors().into_iter();
            let named = match fused(tensor.name) {
                true => in_head(&all.find(|t| t.replaced_by == Some(tensor.name)).unwrap()),
                false => name,
            };
            let expected = format!("input: tensor {named} of the MTP head is missing");
            assert_eq!(error, expected, "{} {form:?}", head.arch);
        }
    }
}

/// Every tensor of a head is named if its shape does not match the target's layers.
#[test]
fn wrong_shapes_are_named() {
    for (head, form) in all_forms() {
        let halves = split_mtp(&model_of(head, form)).unwrap();
        for tensor in tensors_of(head, form) {
            let mut donor = halves.mtp.clone();
            let name = in_head(&tensor);
            let damaged = donor.tensors.iter_mut().find(|t| t.name == name).unwrap();
            damaged.shape = vec![N_EMBD - 1];
            let error = graft_mtp(&halves.body, &donor).unwrap_err().to_string();
            let expected = format!("donor: tensor {name}: shape [31], expected [");
            assert!(error.starts_with(&expected), "{}: {error}", head.arch);
        }
    }
}

/// A second head is refused where readers accept one.
#[test]
fn more_heads_than_readers_accept() {
    for head in heads() {
        let Some(max) = head.max_heads else { continue };
        let arch = head.arch;
        let mut donor = model_of(head, Form::Separate);
        let second: Vec<Tensor> = donor
            .tensors
            .iter()
            .filter(|tensor| tensor.layer() == Some(N_LAYER))
            .map(|tensor| {
                let (from, to) = (format!("blk.{N_LAYER}."), format!("blk.{}.", N_LAYER + 1));
                let name = tensor.name.replace(&from, &to);
                Tensor {
                    name,
                    ..tensor.clone()
                }
            })
            .collect();
        let body = split_mtp(&donor).unwrap().body;
        donor.tensors.extend(second);
        let mut set = |key: &str, value: schemas::gguf::Value| {
            donor.metadata.set(format!("{arch}.{key}"), value);
        };
        set("block_count", (N_LAYER + 2).into());
        set("nextn_predict_layers", 2u32.into());
        set("attention.head_count", vec![2u32, 2, 4, 4, 4].into());
        let error = graft_mtp(&body, &donor).unwrap_err().to_string();
        let expected = format!("donor: 2 MTP heads, readers of architecture {arch} accept {max}");
        assert_eq!(error, expected);
    }
}

/// A head that was trained with other mixers than the target's is refused.
#[test]
fn foreign_mixers_are_refused() {
    let head = find("deepseek4").unwrap();
    let halves = split_mtp(&model_of(head, Form::Separate)).unwrap();
    let outcome = |donor: &Plan| {
        let report = graft::pair(&halves.body, donor).unwrap();
        let of_mixers = report.checks.into_iter();
        let of_mixers = of_mixers.filter(|check| check.subject.starts_with("output_hc_"));
        of_mixers
            .map(|check| check.finding)
            .collect::<Vec<schemas::report::Finding>>()
    };
    use schemas::report::Finding::{Refuses, Same};
    assert_eq!(outcome(&halves.mtp), [Same; 3]);
    let mut donor = halves.mtp.clone();
    let at = donor.tensors.iter();
    let at = at
        .into_iter()
        .position(|t| t.name == head.mixers[1])
        .unwrap();
    donor.tensors[at] = Tensor {
        name: head.mixers[1].to_owned(),
        ..donor.tensors[at + 1].clone()
    };
    assert_eq!(outcome(&donor), [Same, Refuses, Same]);
}

/// A head with a reduced vocabulary in the layout of published sidecars is grafted in ours.
#[test]
fn published_reduced_vocabularies_are_grafted() {
    let head = find("qwen35").unwrap();
    let halves = split_mtp(&model_of(head, Form::Separate)).unwrap();
    let mut donor = halves.mtp.clone();
    let own = format!("blk.{N_LAYER}.nextn.shared_head_head.weight");
    donor.tensors.retain(|tensor| tensor.name != own);
    donor.tensors.push(model::tensor(
        "output.weight",
        vec![N_EMBD, 2],
        DType::F32,
        5,
    ));
    donor
        .tensors
        .push(schemas::vocab::write_d2t(schemas::vocab::D2T, &[0, 2]));
    let whole = graft_mtp(&halves.body, &donor).unwrap();
    let output = whole.tensor(&own).unwrap();
    assert_eq!(output.shape, [N_EMBD, 2]);
    let map = whole
        .tensor(&format!("blk.{N_LAYER}.nextn.d2t"))
        .expect("the map is part of the head");
    assert_eq!(schemas::vocab::read_d2t(map, 3).unwrap(), [0, 2]);
    let metadata = &whole.metadata;
    assert_eq!(
        metadata.str(keys::MTP_LAYOUT).unwrap(),
        Some("trimmed-vocab")
    );
    assert_eq!(metadata.u32(keys::DRAFT_VOCAB_SIZE).unwrap(), Some(2));
    assert!(whole.tensor("output.weight").is_none());

    // A map that is as long as no output is not taken for one.
    donor.tensors.last_mut().expect("the map was pushed").shape = vec![3];
    assert!(!schemas::arch::reduced_vocab::is_published(&donor));
}

/// The list of a head's tensors that graft uses has those of a model with known hyperparameters.
#[test]
fn heads_of_models_have_the_listed_tensors() {
    for plan in fixtures::all() {
        let arch = plan.metadata.need_str(keys::ARCHITECTURE).unwrap();
        let n_mtp = plan
            .metadata
            .u32(&format!("{arch}.nextn_predict_layers"))
            .unwrap();
        let Some(spec) = by_name(arch).filter(|spec| spec.mtp.is_some()) else {
            assert_eq!(n_mtp.unwrap_or(0), 0, "{arch} has a head without a layout");
            continue;
        };
        let n_block = plan
            .metadata
            .need_u32(&format!("{arch}.block_count"))
            .unwrap();
        let head = format!("blk.{}.", n_block - 1);
        let names = plan
            .tensors
            .iter()
            .filter_map(|t| t.name.strip_prefix(&head));
        let names: Vec<&str> = names.collect();
        for row in head_tensors(spec).filter(|row| row.need == Need::Required) {
            assert!(
                names.contains(&row.name),
                "{arch}: {} is required",
                row.name
            );
        }
        for name in names {
            assert!(
                head_tensors(spec).any(|row| row.name == name),
                "{arch}: {name}"
            );
        }
        let halves = split_mtp(&plan).unwrap();
        let again = graft_mtp(&halves.body, &halves.mtp).unwrap();
        assert_eq!(again.metadata, plan.metadata, "{arch}");
    }
}
