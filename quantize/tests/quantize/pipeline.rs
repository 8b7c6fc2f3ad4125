//! Plans of quantized files: keys, order, data, and invalid data.

use std::sync::Arc;

use proptest::prelude::*;
use quantize::{FType, QuantizeConfig, Quantized, plan};
use schemas::gguf::{DType, Metadata, Output, Owned, Plan, Tensor, WriteConfig, open, write};

fn config(ftype: FType) -> QuantizeConfig {
    QuantizeConfig::new(ftype)
}

fn tensor(name: &str, shape: &[u64], dtype: DType, bytes: Vec<u8>) -> Tensor {
    let row_bytes = dtype.row_bytes(shape[0]).unwrap();
    let source = Arc::new(Owned { bytes, row_bytes });
    Tensor::new(name, shape.to_vec(), dtype, source).unwrap()
}

pub(crate) fn f32_tensor(name: &str, shape: &[u64], x: &[f32]) -> Tensor {
    let bytes = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, shape, DType::F32, bytes)
}

/// A one-layer llama with these tensors.
pub(crate) fn llama(tensors: Vec<Tensor>) -> Plan {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("general.file_type", 0u32);
    metadata.set("llama.block_count", 1u32);
    Plan {
        tensors,
        ..Plan::new(metadata)
    }
}

fn keys(plan: &Plan) -> Vec<(&str, String)> {
    let entries = plan.metadata.iter();
    entries
        .map(|(key, value)| (key, value.to_string()))
        .collect()
}

/// Ascending values in blocks of 32, so that block scales are simple numbers.
fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 32) as f32 * 8.0 - 127.0).collect()
}

#[test]
fn keys_of_the_quantization_go_to_the_end() {
    let input = llama(vec![f32_tensor("blk.0.attn_q.weight", &[32, 1], &ramp(32))]);
    let quantized = plan(&input, &config(FType::Q8_0)).unwrap();
    let expected = [
        ("general.architecture", "\"llama\""),
        ("llama.block_count", "1"),
        ("general.quantization_version", "2"),
        ("general.file_type", "7"),
    ];
    assert_eq!(
        keys(&quantized.plan),
        expected.map(|(key, value)| (key, value.to_owned()))
    );
    let copy = plan(&input, &config(FType::COPY)).unwrap();
    assert_eq!(keys(&copy.plan).last().unwrap().1, "0", "the input's");
}

#[test]
fn tensors_are_sorted_and_trailing_axes_dropped() {
    let names = [
        "blk.10.a.weight",
        "blk.2.b.weight",
        "token_embd.weight",
        "blk.2.a.weight",
        "output.weight",
    ];
    let tensors = names.map(|name| f32_tensor(name, &[32, 1, 1], &ramp(32)));
    let quantized = plan(&llama(tensors.to_vec()), &config(FType::Q8_0)).unwrap();
    let tensors = &quantized.plan.tensors;
    let found: Vec<_> = tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(
        found,
        [
            "output.weight",
            "token_embd.weight",
            "blk.2.a.weight",
            "blk.2.b.weight",
            "blk.10.a.weight"
        ]
    );
    assert!(tensors.iter().all(|t| t.shape == [32]), "one row of 32");
    assert!(tensors.iter().all(|t| t.dtype == DType::F32), "so kept");
}

#[test]
fn data_is_laid_out_by_the_inputs_alignment() {
    let x = ramp(128);
    let mut input = llama(vec![
        f32_tensor("blk.0.attn_k.weight", &[32, 2], &x[..64]),
        f32_tensor("blk.0.attn_q.weight", &[32, 4], &x),
    ]);
    input.metadata.set("general.alignment", 256u32);
    let quantized = plan(&input, &config(FType::Q8_0)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q.gguf");
    write(
        &[Output {
            plan: &quantized.plan,
            path: &path,
        }],
        &WriteConfig::new(),
    )
    .unwrap();
    let read = open(&path).unwrap();
    for (read, planned) in read.tensors.iter().zip(&quantized.plan.tensors) {
        assert_eq!(read.name, planned.name);
        assert_eq!(read.read_all().unwrap(), planned.read_all().unwrap());
    }
}

fn refusal(input: &Plan, ftype: FType) -> String {
    let refused = plan(input, &config(ftype)).map(|_: Quantized| ());
    refused.unwrap_err().to_string()
}

/// Returns the error of writing the only tensor.
fn write_error(input: &Plan, ftype: FType) -> String {
    let quantized = plan(input, &config(ftype)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q.gguf");
    let error = write(
        &[Output {
            plan: &quantized.plan,
            path: &path,
        }],
        &WriteConfig::new(),
    )
    .unwrap_err();
    assert!(!path.exists(), "nothing is left behind");
    error.to_string()
}

#[test]
fn sources_that_are_not_finite() {
    let mut x = ramp(96 * 2);
    x[96 + 40] = f32::NAN;
    let name = "blk.0.attn_q.weight";
    let input = llama(vec![f32_tensor(name, &[96, 2], &x)]);
    let expected =
        "tensor blk.0.attn_q.weight: NaN in the F32 source, element 136 (row 1, column 40)";
    for ftype in [FType::Q8_0, FType::F16, FType::COPY] {
        assert_eq!(write_error(&input, ftype), expected, "{ftype}");
    }
    let mut blocks = vec![0u8; 34 * 3];
    blocks[34 * 2..][..2].copy_from_slice(&0xfc00u16.to_le_bytes());
    let input = llama(vec![tensor(name, &[32, 3], DType::Q8_0, blocks)]);
    assert_eq!(
        write_error(&input, FType::COPY),
        "tensor blk.0.attn_q.weight: infinity in the Q8_0 source, elements 64 to 95 (row 2, columns \
         0 to 31)"
    );
}

#[test]
fn values_too_large_for_the_type() {
    let mut x = ramp(64 * 2);
    x[64 + 33] = 1.6e7;
    let input = llama(vec![f32_tensor("blk.0.attn_q.weight", &[64, 2], &x)]);
    assert_eq!(
        write_error(&input, FType::Q8_0),
        "tensor blk.0.attn_q.weight: values that Q8_0 cannot hold (infinity in the result), elements \
         96 to 127 (row 1, columns 32 to 63)"
    );
    assert_eq!(
        write_error(&input, FType::F16),
        "tensor blk.0.attn_q.weight: values that F16 cannot hold (infinity in the result), element 97 \
         (row 1, column 33)"
    );
    assert!(
        plan(&input, &config(FType::BF16)).unwrap().plan.tensors[0]
            .read_all()
            .is_ok()
    );
}

#[test]
fn sources_that_may_not_or_cannot_be_decoded() {
    let name = "blk.0.attn_q.weight";
    let q8_0 = || tensor(name, &[32, 2], DType::Q8_0, vec![0; 68]);
    assert_eq!(
        refusal(&llama(vec![q8_0()]), FType::Q4_0),
        "tensor blk.0.attn_q.weight: requantizing from Q8_0 to Q4_0 loses more than quantizing the original"
    );
    let allowed = QuantizeConfig {
        allow_requantize: true,
        ..config(FType::Q4_0)
    };
    let quantized = plan(&llama(vec![q8_0()]), &allowed).unwrap();
    let zero_block = [[0x00, 0x80].as_slice(), &[0x88; 16]].concat();
    assert_eq!(
        quantized.plan.tensors[0].read_all().unwrap(),
        zero_block.repeat(2),
        "a block of zeros, as the peer writes it"
    );
    let integers = tensor(name, &[32, 2], DType::I32, vec![0; 256]);
    assert_eq!(
        refusal(&llama(vec![integers]), FType::Q8_0),
        "tensor blk.0.attn_q.weight: cannot decode I32, which is needed to write Q8_0"
    );
}

#[test]
fn too_few_bits_without_an_importance_matrix() {
    let input = llama(vec![f32_tensor(
        "blk.0.attn_q.weight",
        &[256, 2],
        &ramp(512),
    )]);
    assert_eq!(
        refusal(&input, FType::Q2_K_S),
        "tensor blk.0.attn_q.weight: Q2_K requires an importance matrix with an entry for the tensor when the \
         file type is Q2_K_S"
    );
}

#[test]
fn a_layer_that_the_rules_need_and_the_name_hides() {
    let mut input = llama(vec![f32_tensor("ffn_down.weight", &[256, 2], &ramp(512))]);
    input.metadata.set("llama.expert_count", 4u32);
    assert_eq!(
        refusal(&input, FType::Q4_K_M),
        "tensor ffn_down.weight: expected a name that starts with blk.N., N below 1"
    );
}

/// File types that need no importance matrix for the tensor below.
fn without_matrix() -> Vec<FType> {
    let zeros = [0.0; 256 * 6];
    let input = llama(vec![f32_tensor(
        "blk.0.ffn_up_exps.weight",
        &[256, 2, 3],
        &zeros,
    )]);
    let is_planned = |&ftype: &FType| plan(&input, &config(ftype)).is_ok();
    FType::all().filter(is_planned).collect()
}

proptest! {
    /// Rows are quantized independently, so a file does not depend on how it is split.
    #[test]
    fn any_rows_can_be_read_alone(
        x in prop::collection::vec(-100.0f32..100.0, 256 * 6),
        (start, end) in (0u64..6, 0u64..7),
        ftype in prop::sample::select(without_matrix()),
    ) {
        let shape = [256, 2, 3];
        let input = llama(vec![f32_tensor("blk.0.ffn_up_exps.weight", &shape, &x)]);
        let quantized = plan(&input, &config(ftype)).unwrap().plan;
        let tensor = &quantized.tensors[0];
        let row_bytes = tensor.row_bytes();
        let rows = start.min(end)..end;
        let mut alone = vec![0; ((rows.end - rows.start) * row_bytes) as usize];
        tensor.source.read(rows.clone(), &mut alone).unwrap();
        let at = |row: u64| (row * row_bytes) as usize;
        prop_assert_eq!(&alone, &tensor.read_all().unwrap()[at(rows.start)..at(rows.end)]);
    }
}
