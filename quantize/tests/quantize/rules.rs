//! Options that users give by name, and their effect on the mix.

use quantize::{FType, KeyOverride, QuantizeConfig, TypeRule, decide, parse_type, plan};
use schemas::gguf::{DType, Plan};

use crate::pipeline::{f32_tensor, llama};

/// A model of eight `attn_v` tensors and an MTP layer.
fn model() -> Plan {
    let x = vec![0.5; 256 * 2];
    let mut names: Vec<String> = (0..9).map(|i| format!("blk.{i}.attn_v.weight")).collect();
    names.push("blk.8.nextn.eh_proj.weight".to_owned());
    names.push("token_embd.weight".to_owned());
    let tensors = names.iter().map(|name| f32_tensor(name, &[256, 2], &x));
    let mut plan = llama(tensors.collect());
    plan.metadata.set("llama.block_count", 9u32);
    plan.metadata.set("llama.nextn_predict_layers", 1u32);
    plan
}

fn rules(texts: &[&str]) -> Vec<TypeRule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Returns the types in file order: the embedding, then layer by layer.
fn types(config: &QuantizeConfig) -> Vec<DType> {
    let decisions = decide(&model(), config).unwrap();
    decisions.iter().map(|d| d.to).collect()
}

const Q8: DType = DType::Q8_0;
const Q6: DType = DType::Q6_K;
const Q4: DType = DType::Q4_K;

#[test]
fn a_rule_does_not_advance_the_mix() {
    let plain = QuantizeConfig::new(FType::Q4_K_M);
    let tail = [Q6, Q4];
    // use_more_bits with 9 / 8 = 1: values 0, 3, 6 and the last two get more bits.
    let expected = [Q6, Q6, Q4, Q4, Q6, Q4, Q4, Q6, Q6];
    assert_eq!(types(&plain), [&expected[..], &tail].concat());
    let ruled = QuantizeConfig {
        tensor_types: rules(&["BLK\\.0\\.(?!attn_k)=q8_0", "attn_v=f16"]),
        ..plain.clone()
    };
    assert_eq!(
        types(&ruled)[1..3],
        [Q8, DType::F16],
        "the first that matches"
    );
    let shifted = QuantizeConfig {
        tensor_types: rules(&["^blk\\.0\\.=q8_0"]),
        ..plain
    };
    assert_eq!(
        types(&shifted)[..5],
        [Q6, Q8, Q6, Q4, Q4],
        "as if one later"
    );
}

#[test]
fn flags_for_output_and_embeddings() {
    let config = |f: fn(&mut QuantizeConfig)| {
        let mut config = QuantizeConfig::new(FType::Q4_K_M);
        f(&mut config);
        types(&config)[0]
    };
    assert_eq!(config(|c| c.output_type = Some(Q8)), Q8, "it is tied");
    assert_eq!(config(|c| (c.output_type, c.pure) = (Some(Q8), true)), Q4);
    assert_eq!(config(|c| c.leave_output = true), Q6, "not of that name");
    let both = |c: &mut QuantizeConfig| {
        c.output_type = Some(Q8);
        c.embedding_type = Some(DType::F16);
    };
    assert_eq!(config(both), DType::F16);
    let float = QuantizeConfig {
        embedding_type: Some(Q8),
        tensor_types: rules(&["attn_v=q8_0"]),
        ..QuantizeConfig::new(FType::F16)
    };
    assert_eq!(types(&float)[..2], [Q8, DType::F16], "rules are ignored");
}

#[test]
fn a_type_asked_for_by_flag_must_fit() {
    let x = vec![0.5; 96 * 2];
    let input = llama(vec![f32_tensor("token_embd.weight", &[96, 2], &x)]);
    let config = QuantizeConfig {
        embedding_type: Some(Q4),
        ..QuantizeConfig::new(FType::Q4_K_M)
    };
    assert_eq!(
        decide(&input, &config).unwrap_err().to_string(),
        "tensor token_embd.weight: rows of 96 elements are not a multiple of Q4_K blocks of 256"
    );
}

#[test]
fn the_heads_own_type() {
    let config = QuantizeConfig {
        mtp_type: Some(DType::Q5_K),
        ..QuantizeConfig::new(FType::Q4_K_M)
    };
    assert_eq!(
        types(&config)[9..],
        [DType::Q5_K, Q8],
        "eh_proj at least that"
    );
    let asked = QuantizeConfig {
        tensor_types: rules(&["eh_proj=q4_0"]),
        ..config.clone()
    };
    assert_eq!(types(&asked)[9..], [DType::Q5_K, DType::Q4_0]);
    let mut headless = model();
    headless.metadata.set("llama.nextn_predict_layers", 0u32);
    let error = decide(&headless, &config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a type was set for the MTP head, but the file has no MTP head"
    );
}

#[test]
fn keys_are_set_at_the_end_and_decide() {
    let overrides = [
        "llama.block_count=int:-80",
        "a.name=str:b=c:d",
        "a.x=float:0.5",
    ];
    let config = QuantizeConfig {
        overrides: overrides.map(|text| text.parse().unwrap()).to_vec(),
        ..QuantizeConfig::new(FType::Q4_K_M)
    };
    let quantized = plan(&model(), &config).unwrap();
    let keys = quantized.plan.metadata.iter();
    let keys: Vec<_> = keys.map(|(key, value)| format!("{key} {value}")).collect();
    assert_eq!(
        keys[4..],
        ["llama.block_count 80", "a.name \"b=c:d\"", "a.x 0.5"]
    );
}

#[test]
fn invalid_rules() {
    let rule = |text: &str| text.parse::<TypeRule>().unwrap_err().to_string();
    assert_eq!(rule("attn_v"), "\"attn_v\": expected REGEX=TYPE");
    assert_eq!(rule("=q8_0"), "\"=q8_0\": expected REGEX=TYPE");
    assert!(rule("a(=q8_0").starts_with("\"a(=q8_0\": "));
    assert!(rule("a=q9").starts_with("element type \"q9\": expected one of F32, F16, Q4_0"));
    assert!(parse_type("i32").is_err(), "carried, not made");
    let key = |text: &str| text.parse::<KeyOverride>().unwrap_err().to_string();
    assert_eq!(
        key("a=bool:yes"),
        "\"a=bool:yes\": expected KEY=TYPE:VALUE, true or false"
    );
    for text in [
        "a",
        "=int:1",
        "a=int",
        "a=int:x",
        "a=int:4294967296",
        "a=u8:1",
    ] {
        assert!(key(text).contains("expected KEY=TYPE:VALUE"), "{text}");
    }
}
