//! FP8 checkpoints: compared with files of llama.cpp's converter, or rejected if the format is ambiguous.
//!
//! The checkpoints are those of tests/reference/fp8_goldens.py, which uses the same generator.

use std::fs;
use std::path::Path;

use convert::{MtpMode, OutType};
use safetensors::Dtype;
use schemas::gguf::{Output, WriteConfig, write};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::checkpoint::{Checkpoint, REFERENCE, Stored};

/// Generator of FP8 elements and scales.
struct Numbers(u32);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0
    }

    /// Returns FP8 bytes of finite numbers.
    fn codes(&mut self, n: usize, dtype: Dtype) -> Vec<u8> {
        let code = |_| {
            let code = (self.next() >> 24) as u8;
            let finite = match dtype {
                Dtype::F8_E4M3 => code & 0x7F != 0x7F,
                _ => code & 0x7C != 0x7C,
            };
            if finite { code } else { code ^ 0x40 }
        };
        (0..n).map(code).collect()
    }

    /// Returns scales that every floating-point type represents exactly.
    fn scales(&mut self, n: usize, dtype: Dtype) -> Vec<u8> {
        let values = (0..n).map(|_| ((self.next() >> 25) + 1) as f32 / 1024.0);
        match dtype {
            Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
            _ => values.flat_map(|x| x.to_le_bytes()[2..].to_vec()).collect(),
        }
    }
}

/// Storage format of the projections.
struct Coding {
    dtype: Dtype,
    /// Suffix, type and shape of the scales.
    scales: Option<(&'static str, Dtype, ScaleShape)>,
    settings: Option<Value>,
}

type ScaleShape = fn(&[usize]) -> Vec<usize>;

fn fp8(block: Option<[u64; 2]>) -> Option<Value> {
    Some(json!({"quant_method": "fp8", "weight_block_size": block}))
}

fn compressed(strategy: &str) -> Option<Value> {
    let weights = json!({"type": "float", "num_bits": 8, "strategy": strategy});
    Some(json!({
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    }))
}

fn coding(case: &str) -> Coding {
    let (dtype, scales, settings): (_, Option<(_, _, ScaleShape)>, _) = match case {
        "blocks" => (
            Dtype::F8_E4M3,
            Some(("_scale_inv", Dtype::F32, |shape| {
                vec![shape[0].div_ceil(48), shape[1].div_ceil(40)]
            })),
            fp8(Some([48, 40])),
        ),
        "large-blocks" => (
            Dtype::F8_E4M3,
            Some(("_scale_inv", Dtype::BF16, |_| vec![1, 1])),
            fp8(Some([128, 128])),
        ),
        "channels" => (
            Dtype::F8_E4M3,
            Some(("_scale", Dtype::BF16, |shape| vec![shape[0], 1])),
            compressed("channel"),
        ),
        "tensors" => (
            Dtype::F8_E4M3,
            Some(("_scale", Dtype::F32, |_| vec![1])),
            Some(json!({"quant_method": "modelopt", "quant_algo": "FP8"})),
        ),
        "e5m2" => (
            Dtype::F8_E5M2,
            Some(("_scale_inv", Dtype::F32, |_| vec![])),
            fp8(None),
        ),
        "unscaled" => (Dtype::F8_E4M3, None, None),
        "f64" => (Dtype::F64, None, None),
        other => panic!("{other} is no case"),
    };
    Coding {
        dtype,
        scales,
        settings,
    }
}

/// Returns a reference checkpoint with its projections stored in that format.
fn checkpoint(coding: &Coding) -> Checkpoint {
    let checkpoint = Checkpoint::of("qwen3");
    checkpoint.edit_json("config.json", |config| {
        if let Some(settings) = &coding.settings {
            config["quantization_config"] = settings.clone();
        }
    });
    checkpoint.edit_weights(|tensors| {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let mut scales = Vec::new();
        for (i, tensor) in tensors.iter_mut().enumerate() {
            if tensor.name.ends_with("_proj.weight") {
                scales.extend(encode(tensor, i, coding));
            }
        }
        tensors.extend(scales);
    });
    checkpoint
}

/// Replaces a tensor's elements; returns its scales.
fn encode(tensor: &mut Stored, i: usize, coding: &Coding) -> Option<Stored> {
    tensor.dtype = coding.dtype;
    if coding.dtype == Dtype::F64 {
        let singles = tensor.bytes.chunks(2).map(|x| [0, 0, x[0], x[1]]);
        let doubles = singles.map(|x| f64::from(f32::from_le_bytes(x)) / 3.0);
        tensor.bytes = doubles.flat_map(f64::to_le_bytes).collect();
        return None;
    }
    let mut numbers = Numbers(i as u32 + 1);
    tensor.bytes = numbers.codes(tensor.shape.iter().product(), coding.dtype);
    let (suffix, dtype, shape) = coding.scales?;
    let shape = shape(&tensor.shape);
    Some(Stored {
        name: format!("{}{suffix}", tensor.name),
        dtype,
        bytes: numbers.scales(shape.iter().product(), dtype),
        shape,
    })
}

fn hash_of(checkpoint: &Checkpoint, outtype: OutType) -> String {
    let converted = checkpoint.convert(outtype, MtpMode::Inline);
    let plan = converted.unwrap_or_else(|error| panic!("{error}")).plan;
    let path = checkpoint.path("out.gguf");
    let output = Output {
        plan: &plan,
        path: &path,
    };
    write(&[output], &WriteConfig::new()).unwrap();
    let digest = Sha256::digest(fs::read(path).unwrap());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn codes_and_scales_become_the_peers_files() {
    let golden = fs::read(Path::new(REFERENCE).join("fp8.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let golden = golden.as_object().unwrap();
    assert_eq!(golden.len(), 21);
    for (name, expected) in golden {
        let (case, outtype) = name.split_once(' ').unwrap();
        let found = hash_of(&checkpoint(&coding(case)), outtype.parse().unwrap());
        assert_eq!(found, *expected, "{name}");
    }
}

#[test]
fn one_scale_a_tensor_is_one_scale_a_tensor_in_every_format() {
    let hash = |case: &str, settings: Option<Value>| {
        let settings = settings.or(coding(case).settings);
        let coding = Coding {
            settings,
            ..coding(case)
        };
        hash_of(&checkpoint(&coding), OutType::F32)
    };
    assert_eq!(hash("tensors", compressed("tensor")), hash("tensors", None));
    assert_eq!(hash("tensors", None), hash("large-blocks", None));
}

#[test]
fn every_step_is_reported() {
    let checkpoint = checkpoint(&coding("tensors"));
    checkpoint.edit_weights(|tensors| {
        tensors.push(Stored {
            name: "model.layers.0.mlp.up_proj.input_scale".to_owned(),
            dtype: Dtype::F32,
            shape: vec![],
            bytes: vec![0; 4],
        });
    });
    let notes = checkpoint.notes(OutType::F32).join("\n");
    for expected in [
        "56 FP8 tensors are decoded with their scales",
        "scales of activations, left out: model.layers.0.mlp.up_proj.input_scale",
    ] {
        assert!(notes.contains(expected), "{notes}");
    }
}

#[test]
fn codes_are_never_read_without_their_scales() {
    const WEIGHT: &str = "model.layers.3.mlp.up_proj.weight";
    let refused = |case: &str, change: &dyn Fn(&mut Vec<Stored>, &mut Value)| {
        let checkpoint = checkpoint(&coding(case));
        let mut config = Value::Null;
        checkpoint.edit_json("config.json", |json| config = json.take());
        checkpoint.edit_weights(|tensors| change(tensors, &mut config));
        checkpoint.write("config.json", config.to_string());
        checkpoint.refusal(MtpMode::Inline)
    };
    assert_eq!(
        refused("blocks", &|tensors, _| {
            tensors.retain(|t| t.name != format!("{WEIGHT}_scale_inv"));
        }),
        format!(
            "model.safetensors: tensor {WEIGHT}: F8_E4M3 weights need their scales, but the checkpoint has no tensor \
             {WEIGHT}_scale_inv; download the whole checkpoint"
        )
    );
    assert_eq!(
        refused("blocks", &|_, config| {
            config["quantization_config"]["weight_block_size"] = json!([64, 40]);
        }),
        "model.safetensors: tensor model.layers.0.mlp.down_proj.weight_scale_inv: shape [2, 4], expected scales for shape [64, 128] in blocks of [64, 40]"
    );
    assert_eq!(
        refused("channels", &|tensors, _| {
            let name = format!("{WEIGHT}_scale");
            let scales = tensors.iter_mut().find(|t| t.name == name).unwrap();
            scales.shape = vec![64, 2];
        }),
        format!(
            "model.safetensors: tensor {WEIGHT}_scale: shape [64, 2], expected scales for shape [128, 64] per tensor or per row"
        )
    );
    assert_eq!(
        refused("blocks", &|_, config| {
            config
                .as_object_mut()
                .unwrap()
                .remove("quantization_config");
        }),
        "model.safetensors: tensor model.layers.0.mlp.down_proj.weight: has scales in \
         model.layers.0.mlp.down_proj.weight_scale_inv, but config.json has no \
         quantization_config that describes them; use the config.json that the checkpoint \
         was published with"
    );
    assert_eq!(
        refused("blocks", &|_, config| {
            config["quantization_config"]["weight_block_size"] = json!([0, 40]);
        }),
        "config.json: field quantization_config.weight_block_size: expected two positive \
         integers, found [0,40]"
    );
}

#[test]
fn other_methods_are_refused_by_name() {
    let packed = json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 4}}},
    });
    let nvfp4 = json!({
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 4}}},
    });
    let mut mixed = compressed("channel").unwrap();
    mixed["config_groups"]["group_1"] = mixed["config_groups"]["group_0"].clone();
    for (settings, method) in [
        (packed, "compressed-tensors (pack-quantized)"),
        (nvfp4, "compressed-tensors (nvfp4-pack-quantized)"),
        (mixed, "compressed-tensors (float-quantized)"),
        (json!({"quant_method": "gptq", "bits": 4}), "gptq"),
        (json!({"quant_method": "awq", "bits": 4}), "awq"),
        (json!({"quant_method": "bitsandbytes"}), "bitsandbytes"),
        (
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            "modelopt (NVFP4)",
        ),
        (json!({"bits": 4}), "unnamed"),
    ] {
        let checkpoint = Checkpoint::of("qwen3");
        checkpoint.edit_json("config.json", |c| c["quantization_config"] = settings);
        let expected = format!(
            "config.json: quantization method {method:?} is not supported; convert the original \
             checkpoint instead"
        );
        assert_eq!(checkpoint.refusal(MtpMode::Inline), expected);
    }
    let checkpoint = Checkpoint::of("qwen3");
    let settings = json!({"quantization": {"quant_algo": "NVFP4"}});
    checkpoint.write("hf_quant_config.json", settings.to_string());
    assert_eq!(
        checkpoint.refusal(MtpMode::Inline),
        "hf_quant_config.json: quantization method \"modelopt (NVFP4)\" is not supported; convert \
         the original checkpoint instead"
    );
}
