//! Splitting a head off and grafting it back restores the file, byte for byte.

use graft::{TENSOR_POSITIONS, replace_mtp, split_mtp};
use proptest::prelude::*;
use proptest::sample::Index;
use schemas::gguf::{DType, Metadata, Plan, Value, open};

use crate::model::{self, graft_mtp};

fn names(plan: &Plan) -> Vec<&str> {
    plan.tensors.iter().map(|t| t.name.as_str()).collect()
}

#[test]
fn halves_are_laid_out_as_the_converters() {
    let whole = model::plan(model::metadata(3, 1));
    let halves = split_mtp(&whole).unwrap();

    let mut body = model::metadata(3, 0);
    body.set("qwen35.block_count", 3u32);
    assert_eq!(halves.body.metadata, body);
    let sections = halves.body.metadata.get("qwen35.rope.dimension_sections");
    assert_eq!(
        sections.and_then(Value::as_array).map(|a| a.len()),
        Some(4),
        "four entries in a file of four layers, yet not one for each"
    );
    let body_names = names(&halves.body);
    assert_eq!(
        body_names,
        names(&model::plan(model::metadata(3, 0))),
        "the trunk's tensors, in order"
    );

    assert_eq!(halves.mtp.metadata, whole.metadata);
    let mtp_names = names(&halves.mtp);
    assert_eq!(
        mtp_names[..3],
        ["token_embd.weight", "output_norm.weight", "output.weight"]
    );
    assert!(mtp_names[3..].iter().all(|name| name.starts_with("blk.3.")));
    assert_eq!(mtp_names.len() + body_names.len(), whole.tensors.len() + 3);
}

#[test]
fn a_head_grafts_onto_a_trunk_of_another_length() {
    let donor = model::plan(model::metadata(2, 1));
    let target = model::plan(model::metadata(5, 0));
    let grafted = graft_mtp(&target, &donor).unwrap();
    assert_eq!(grafted.metadata, model::metadata(5, 1));
    assert_eq!(
        names(&grafted),
        names(&model::plan(model::metadata(5, 1))),
        "donor layer 2 became layer 5"
    );
    let eh_proj = grafted.tensor("blk.5.nextn.eh_proj.weight").unwrap();
    let original = donor.tensor("blk.2.nextn.eh_proj.weight").unwrap();
    assert_eq!(eh_proj.source.bytes(), original.source.bytes());
}

#[test]
fn a_sidecar_is_as_good_a_donor_as_a_whole_model() {
    let whole = model::plan(model::metadata(4, 2));
    let halves = split_mtp(&whole).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let from_sidecar = graft_mtp(&halves.body, &halves.mtp).unwrap();
    let from_whole = graft_mtp(&halves.body, &whole).unwrap();
    assert_eq!(
        model::written(&from_sidecar, &dir.path().join("a.gguf")),
        model::written(&from_whole, &dir.path().join("b.gguf")),
    );
}

/// Quantizing before grafting gives the same keys as quantizing afterwards.
#[test]
fn keys_of_the_architecture_stay_together() {
    let as_quantized = |mut metadata: Metadata| {
        metadata.set_last("general.file_type", 15u32);
        metadata
    };
    let donor = model::plan(model::metadata(4, 1));
    let target = model::plan(as_quantized(model::metadata(4, 0)));
    let grafted = graft_mtp(&target, &donor).unwrap();
    let expected = as_quantized(model::metadata(4, 1));
    let keys = |m: &Metadata| m.iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
    assert_eq!(keys(&grafted.metadata), keys(&expected));
}

#[test]
fn a_target_from_before_the_per_layer_array_gets_none() {
    let mut old = model::metadata(4, 0);
    old.remove("qwen35.attention.recurrent_layers");
    old.set("qwen35.full_attention_interval", 2u32);
    let grafted = graft_mtp(&model::plan(old), &model::plan(model::metadata(4, 1))).unwrap();
    assert!(
        !grafted
            .metadata
            .contains("qwen35.attention.recurrent_layers")
    );
}

#[test]
fn an_old_donor_adds_attention_layers() {
    let mut old = model::metadata(4, 1);
    old.remove("qwen35.attention.recurrent_layers");
    old.set("qwen35.full_attention_interval", 2u32);
    let target = model::plan(model::metadata(4, 0));
    let grafted = graft_mtp(&target, &model::plan(old)).unwrap();
    let recurrent = grafted.metadata.bools("qwen35.attention.recurrent_layers");
    assert_eq!(
        recurrent.unwrap().unwrap(),
        [true, false, true, false, false]
    );
}

/// A file as other tools might write it: any order, any types, additional keys and tensors.
#[derive(Clone, Debug)]
struct Recipe {
    n_layer: u32,
    n_mtp: u32,
    version: u32,
    /// For each optional key, true if this file has it.
    keys: Vec<bool>,
    /// Insertion position of each key among the previous ones; likewise of each tensor, or `None`
    /// for the table's order.
    key_places: Vec<Index>,
    tensor_places: Option<Vec<Index>>,
    dtypes: Vec<DType>,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    // Known types without blocks, one with blocks, and unknown ids.
    let dtype = prop::sample::select(vec![0u32, 1, 28, 8, 77, 5000]).prop_map(DType);
    let places = || prop::collection::vec(any::<Index>(), 150);
    (
        (1u32..6, 1u32..3, 2u32..4),
        prop::collection::vec(any::<bool>(), 7),
        places(),
        prop::option::of(places()),
        prop::collection::vec(dtype, 150),
    )
        .prop_map(|(sizes, keys, key_places, tensor_places, dtypes)| Recipe {
            n_layer: sizes.0,
            n_mtp: sizes.1,
            version: sizes.2,
            keys,
            key_places,
            tensor_places,
            dtypes,
        })
}

/// Inserts each item at its chosen position among the previous ones.
fn shuffled<T>(items: impl IntoIterator<Item = T>, places: &[Index]) -> Vec<T> {
    let mut out = Vec::new();
    for (item, place) in items.into_iter().zip(places) {
        out.insert(place.index(out.len() + 1), item);
    }
    out
}

impl Recipe {
    fn metadata(&self) -> Metadata {
        let n_block = self.n_layer + self.n_mtp;
        let mut m = model::metadata(self.n_layer, self.n_mtp);
        let optional: [(&str, Value); 7] = [
            ("general.alignment", 64u32.into()),
            (
                "general.tags",
                vec!["x".to_owned(); n_block as usize].into(),
            ),
            (TENSOR_POSITIONS, vec![3u32, 2, 1].into()),
            ("qwen35.widths", (0..n_block).collect::<Vec<_>>().into()),
            // An array that happens to have as many entries as the trunk has layers.
            ("qwen35.levels", vec![0.5f32; self.n_layer as usize].into()),
            // Types and values that only some readers accept.
            ("qwen35.block_count", i64::from(n_block).into()),
            (
                "qwen35.attention.recurrent_layers",
                vec![true; n_block as usize].into(),
            ),
        ];
        for ((key, value), _) in optional
            .into_iter()
            .zip(&self.keys)
            .filter(|&(_, &has)| has)
        {
            m.set(key, value);
        }
        let entries = m.iter().map(|(key, value)| (key.to_owned(), value.clone()));
        let mut out = Metadata::new();
        for (key, value) in shuffled(entries, &self.key_places) {
            out.set(key, value);
        }
        out
    }

    fn plan(&self) -> Plan {
        let mut plan = model::plan(self.metadata());
        plan.version = self.version;
        // Tensors that the table does not list, one in the trunk and one in the head.
        let unlisted = |layer| {
            let name = format!("blk.{layer}.attn_q.scale");
            model::tensor(&name, vec![32, 2], DType::F32, 0)
        };
        plan.tensors.insert(0, unlisted(0));
        plan.tensors.push(unlisted(self.n_layer));
        let tensors = plan.tensors.iter().zip(&self.dtypes).enumerate();
        let retyped = tensors.map(|(i, (tensor, &dtype))| {
            let fits = tensor.ne0().is_multiple_of(32);
            let dtype = if fits { dtype } else { DType::F32 };
            model::tensor(&tensor.name, tensor.shape.clone(), dtype, i)
        });
        plan.tensors = match &self.tensor_places {
            Some(places) => shuffled(retyped, places),
            None => retyped.collect(),
        };
        plan
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn grafting_undoes_splitting(recipe in recipe()) {
        let whole = recipe.plan();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let expected = model::written(&whole, &at("whole.gguf"));

        let halves = split_mtp(&whole).unwrap();
        let again = graft_mtp(&halves.body, &halves.mtp).unwrap();
        prop_assert!(model::written(&again, &at("again.gguf")) == expected, "in memory");
        let replaced = replace_mtp(&whole, &halves.mtp, &Default::default()).unwrap();
        prop_assert!(model::written(&replaced, &at("again.gguf")) == expected, "replaced");
        let unsplit = split_mtp(&again).unwrap();
        prop_assert_eq!(&unsplit.body.metadata, &halves.body.metadata);
        prop_assert_eq!(&unsplit.mtp.metadata, &halves.mtp.metadata);

        let halves = split_mtp(&open(&at("whole.gguf")).unwrap()).unwrap();
        model::written(&halves.body, &at("body.gguf"));
        model::written(&halves.mtp, &at("mtp.gguf"));
        let body = open(&at("body.gguf")).unwrap();
        let mtp = open(&at("mtp.gguf")).unwrap();
        let again = graft_mtp(&body, &mtp).unwrap();
        prop_assert!(model::written(&again, &at("again.gguf")) == expected, "through files");
    }
}
