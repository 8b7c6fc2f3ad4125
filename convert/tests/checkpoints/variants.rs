//! Modified checkpoints, compared with llama.cpp's conversion of the same checkpoints by the hash of the
//! whole file.

use convert::{MtpMode, OutType};
use half::{bf16, f16};
use safetensors::Dtype;
use schemas::gguf::{Output, WriteConfig, write};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::checkpoint::Checkpoint;

struct Variant {
    name: &'static str,
    reference: &'static str,
    change: fn(&Checkpoint),
    outtype: OutType,
    mtp: MtpMode,
    /// Hash of the file that llama.cpp b11434 writes with transformers 5.23.0.
    sha256: &'static str,
}

fn remove(object: &mut Value, fields: &[&str]) {
    let object = object.as_object_mut().expect("an object");
    for &field in fields {
        object.remove(field).expect("the field is there");
    }
}

/// Rewrites Gemma 3's config with the fields of released checkpoints.
fn as_released(config: &mut Value) {
    remove(config, &["rope_parameters", "layer_types"]);
    config["rope_scaling"] = json!({"factor": 8.0, "rope_type": "linear"});
    config["rope_theta"] = json!(1e6);
    config["rope_local_base_freq"] = json!(1e4);
    config["sliding_window_pattern"] = json!(6);
}

/// Converts every weight to another type.
fn store(checkpoint: &Checkpoint, dtype: Dtype) {
    checkpoint.edit_weights(|tensors| {
        for tensor in tensors {
            let values: Vec<f32> = match tensor.dtype {
                Dtype::BF16 => {
                    let (halves, _) = tensor.bytes.as_chunks();
                    halves
                        .iter()
                        .map(|&b| bf16::from_le_bytes(b).to_f32())
                        .collect()
                }
                Dtype::F32 => {
                    let (words, _) = tensor.bytes.as_chunks();
                    words.iter().map(|&b| f32::from_le_bytes(b)).collect()
                }
                other => panic!("no reference stores {other:?}"),
            };
            tensor.bytes = match dtype {
                Dtype::F16 => values
                    .iter()
                    .flat_map(|&x| f16::from_f32(x).to_le_bytes())
                    .collect(),
                Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                _ => values
                    .iter()
                    .flat_map(|&x| f64::from(x).to_le_bytes())
                    .collect(),
            };
            tensor.dtype = dtype;
        }
    });
}

/// A template processor: `A` and `b` are the texts, `B`, `E` and `T` the tokens `<|begin_of_text|>`,
/// `<|eot_id|>` and `<|end_of_text|>`.
fn template(single: &str, pair: &str) -> Value {
    let items = |text: &str| -> Vec<Value> {
        let item = |letter| match letter {
            "A" => json!({"Sequence": {"id": "A", "type_id": 0}}),
            "b" => json!({"Sequence": {"id": "B", "type_id": 1}}),
            "B" => json!({"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}),
            "E" => json!({"SpecialToken": {"id": "<|eot_id|>", "type_id": 0}}),
            _ => json!({"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}}),
        };
        text.split(' ').map(item).collect()
    };
    json!({"type": "TemplateProcessing", "single": items(single), "pair": items(pair)})
}

const VARIANTS: &[Variant] = &[
    Variant {
        name: "draft with a nested config",
        reference: "eagle3-qwen3",
        change: |c| {
            c.edit_json("config.json", |config| {
                let mut layer = config.take();
                layer["architectures"] = json!(["LlamaForCausalLM"]);
                let n_vocab_draft = layer["draft_vocab_size"].clone();
                remove(&mut layer, &["draft_vocab_size"]);
                *config = json!({
                    "architectures": ["Eagle3Speculator"],
                    "draft_vocab_size": n_vocab_draft,
                    "norm_before_residual": true,
                    "eagle_aux_hidden_state_layer_ids": [1, 4, 7],
                    "target_hidden_size": null,
                    "transformer_layer_config": layer,
                });
            });
            c.edit_weights(|tensors| {
                for tensor in tensors {
                    tensor.name = tensor.name.replace("midlayer.", "layers.0.");
                }
            });
        },
        outtype: OutType::F32,
        mtp: MtpMode::Inline,
        sha256: "c304f8844f161b593d844c10f086f29f1f141e66080b5fd4fa3a9abf7655eb0c",
    },
    Variant {
        name: "the rotation of Llama 3.1",
        reference: "llama",
        change: |c| {
            c.edit_json("config.json", |j| j["rope_scaling"] = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}));
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "4a61dc02ca7ffaf9a0d85dd4f0b7a7920cccc80d547757a0204c9072057bbd93",
    },
    Variant {
        name: "yarn with every setting",
        reference: "qwen3",
        change: |c| {
            c.edit_json("config.json", |j| j["rope_scaling"] = json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 1024, "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.5}));
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "c1e7bb7130dec5fc4250506a626fbcab17571d8b83e90000342a9c11006cad36",
    },
    Variant {
        name: "yarn without its context",
        reference: "qwen3",
        change: |c| {
            c.edit_json("config.json", |j| {
                j["rope_scaling"] = json!({"type": "yarn", "factor": 4})
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "0ed04c36c534eda936b0825d53b4303c3029e7512e44af6ba7c4e391a73bc394",
    },
    Variant {
        name: "linear scaling",
        reference: "llama",
        change: |c| {
            c.edit_json("config.json", |j| {
                j["rope_scaling"] = json!({"type": "linear", "factor": 2.0})
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "8f89b2d64b83deda0aee9fb33e20868c1bc69abb3f52417647370c450a5a2694",
    },
    Variant {
        name: "defaults of llama",
        reference: "llama",
        change: |c| {
            c.edit_json("config.json", |j| {
                remove(
                    j,
                    &[
                        "head_dim",
                        "rms_norm_eps",
                        "max_position_embeddings",
                        "rope_theta",
                    ],
                )
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "883a6bc7e25e0065b05dff7d8f46c0a853364f717caafd2267923690de5e2e95",
    },
    Variant {
        name: "defaults of qwen3",
        reference: "qwen3",
        change: |c| {
            c.edit_json("config.json", |j| {
                remove(
                    j,
                    &["rms_norm_eps", "max_position_embeddings", "rope_theta"],
                )
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "9eb877c646455327a70bcafc5285582d43c9716d1d78ca3bf3a510edb99f9605",
    },
    Variant {
        name: "defaults of qwen35",
        reference: "qwen35",
        change: |c| {
            c.edit_json("config.json", |j| {
                remove(
                    &mut j["text_config"],
                    &[
                        "rms_norm_eps",
                        "max_position_embeddings",
                        "rope_parameters",
                        "layer_types",
                        "full_attention_interval",
                        "linear_conv_kernel_dim",
                        "partial_rotary_factor",
                    ],
                )
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "05c5757587f5568eab9d268ccaad80efdfc0cfe5a3f26695f4d2274c6147f1aa",
    },
    Variant {
        name: "gemma3 as released",
        reference: "gemma3",
        change: |c| c.edit_json("config.json", as_released),
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "00c30240305c3cbae24c47b0d58f1d698739ead232f18e3837d217fe2daf0f52",
    },
    Variant {
        name: "gemma3 that sees",
        reference: "gemma3",
        change: |c| {
            c.edit_json("config.json", |j| {
                as_released(j);
                remove(j, &["architectures"]);
                *j = json!({
                    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
                    "text_config": j.take(),
                    "vision_config": {"hidden_size": 8, "model_type": "siglip_vision_model"},
                    "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
                });
            });
            c.edit_weights(|tensors| {
                for tensor in &mut *tensors {
                    tensor.name = format!("language_model.{}", tensor.name);
                }
                let mut other = tensors[0].clone();
                other.name = "vision_tower.x.weight".to_owned();
                tensors.push(other);
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "885705e633e5ddc278e420f98b20e30d69243ff6e2260acaff68d51e970b381f",
    },
    Variant {
        name: "defaults of gemma3",
        reference: "gemma3",
        change: |c| {
            c.edit_json("config.json", |j| {
                remove(
                    j,
                    &[
                        "rms_norm_eps",
                        "max_position_embeddings",
                        "rope_parameters",
                        "sliding_window",
                        "layer_types",
                    ],
                )
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "6a0250b8f1450a41036f9a6463d0b77efef90207f7860647b122fa02ba468cbf",
    },
    Variant {
        name: "gemma3 with bent logits",
        reference: "gemma3",
        change: |c| {
            c.edit_json("config.json", |j| {
                j["final_logit_softcapping"] = json!(30.0)
            })
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "edc29219a7c4509aff4b224d9f62e1b62d6d28a4adcba3a7d3bee2819c03b12d",
    },
    Variant {
        name: "gemma3 without a window",
        reference: "gemma3",
        change: |c| {
            c.edit_json("config.json", |j| {
                remove(j, &["layer_types"]);
                j["sliding_window_pattern"] = json!(1);
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "0ac83fa45f0b45ebd3a19a7fd2498fee323be3cbee9244b7f300267d6c67624e",
    },
    Variant {
        name: "defaults of glm4moe",
        reference: "glm4moe",
        change: |c| {
            c.edit_json("config.json", |j| {
                remove(
                    j,
                    &[
                        "rms_norm_eps",
                        "max_position_embeddings",
                        "rope_parameters",
                        "n_group",
                        "topk_group",
                        "first_k_dense_replace",
                        "n_shared_experts",
                        "routed_scaling_factor",
                        "head_dim",
                    ],
                )
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "b3b8a08c9a7b2d0045cfb7ad7d916b0d18758af4f962e9d442159a18999a4c04",
    },
    Variant {
        name: "F16 weights, computed in F16",
        reference: "qwen35",
        change: |c| {
            store(c, Dtype::F16);
        },
        outtype: OutType::F32,
        mtp: MtpMode::Inline,
        sha256: "147ef096c30814bf60aa37b0bac84a6956bb370cec39b4cf5359a87d7ad5333a",
    },
    Variant {
        name: "F16 to Q8_0",
        reference: "qwen35",
        change: |c| {
            store(c, Dtype::F16);
        },
        outtype: OutType::Q8_0,
        mtp: MtpMode::Inline,
        sha256: "a6b722a47325263d11180a8250276d17ab8a946c4087ac7a4e1232dc6460715c",
    },
    Variant {
        name: "F16 head",
        reference: "qwen35",
        change: |c| {
            store(c, Dtype::F16);
        },
        outtype: OutType::Auto,
        mtp: MtpMode::Only,
        sha256: "c8e39c8b983c60e84c24895b61f4e618817cb3bc4124a5db89f2f5b05d41ee47",
    },
    Variant {
        name: "F32 to BF16",
        reference: "qwen35",
        change: |c| {
            store(c, Dtype::F32);
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "5d94f780bf966f2091dd16ae9e9b8797b68340c409b118ede6fafc76c0d74834",
    },
    Variant {
        name: "F32 narrowed",
        reference: "qwen35",
        change: |c| {
            store(c, Dtype::F32);
        },
        outtype: OutType::Auto,
        mtp: MtpMode::Inline,
        sha256: "1a1ed7fc106ec8ba902b667b008ce24abfcaf0e2bdda2615efbc4fb5ab222fb0",
    },
    Variant {
        name: "F64 to F16",
        reference: "qwen35",
        change: |c| {
            store(c, Dtype::F64);
        },
        outtype: OutType::F16,
        mtp: MtpMode::Inline,
        sha256: "1a1ed7fc106ec8ba902b667b008ce24abfcaf0e2bdda2615efbc4fb5ab222fb0",
    },
    Variant {
        name: "permuted F16",
        reference: "llama",
        change: |c| {
            store(c, Dtype::F16);
        },
        outtype: OutType::F16,
        mtp: MtpMode::Inline,
        sha256: "2299b829335b0e497b7799ecd89787fb5bd97ebc3edcdc3485bd0c606767b97f",
    },
    Variant {
        name: "tied embeddings",
        reference: "llama",
        change: |c| {
            c.edit_json("config.json", |j| j["tie_word_embeddings"] = json!(true));
            c.edit_weights(|tensors| tensors.retain(|t| t.name != "lm_head.weight"));
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "559098bdc843d7893139236d34cdc0e2f8b3f088391818f603532785cf7c51a5",
    },
    Variant {
        name: "no tokenizer config",
        reference: "llama",
        change: |c| {
            c.remove("tokenizer_config.json");
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "ab02659651c6b68eaac8c5fabf82018cda8501107b2a42e1971880b6d48a404c",
    },
    Variant {
        name: "special tokens as objects",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer_config.json", |j| {
                for role in ["bos_token", "eos_token", "pad_token"] {
                    j[role] = json!({"content": j[role]});
                }
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "08fda5f6d185cd35fe6fda8fde5eb4ce8a1a3d1aeaeb49128e933b2b341a13bd",
    },
    Variant {
        name: "a prefix space",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer_config.json", |j| {
                j["add_prefix_space"] = json!(true)
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "ad1bd68d72ed930014b4330a642e1d60f73ea3f7ac67ff39840d0337333eef39",
    },
    Variant {
        name: "flags against the post processor",
        reference: "qwen3",
        change: |c| {
            c.edit_json("tokenizer_config.json", |j| {
                j["add_bos_token"] = json!(true);
                j["add_eos_token"] = json!(true);
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "00597c6aaacfa3805e6f8ede22c994195e652801ff7f28070448bf791f3fbbb9",
    },
    Variant {
        name: "no post processor",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer.json", |j| j["post_processor"] = json!(null));
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "acc0b440fa7ebea1276d98eda474e4ef297255db35a7e67a1aba56fe94a9195e",
    },
    Variant {
        name: "begin and end tokens",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer.json", |j| {
                j["post_processor"] = template("B A E", "B A E B b E")
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "03ce0e9f36e1caa5f61eeec9004276fee619f79bd37567bdb357c7442cabdb70",
    },
    Variant {
        name: "another end token",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer.json", |j| {
                j["post_processor"] = template("B A T", "B A T b T")
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "aa6446400af5114ae0ad4a3b3d3012218f8290964214969972ba4478724293b6",
    },
    Variant {
        name: "another begin token",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer.json", |j| {
                j["post_processor"] = template("T A", "T A b")
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "6fc1c2bb7ceb3e3b80c88990072ac6462a365157a19a940c421511892bdb0aa5",
    },
    Variant {
        name: "a separator",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer.json", |j| {
                j["post_processor"] = template("B A", "B A E b")
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "d82926d7042453c4e31155c9b3c7171fd8c996aa1c1857ba4831fe1ebe1e8e5e",
    },
    Variant {
        name: "two separators",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer.json", |j| {
                j["post_processor"] = template("B A", "B A B E b")
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "d82926d7042453c4e31155c9b3c7171fd8c996aa1c1857ba4831fe1ebe1e8e5e",
    },
    Variant {
        name: "every role",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer_config.json", |j| {
                j["unk_token"] = json!("<|python_tag|>");
                j["sep_token"] = json!("<|eom_id|>");
                j["mask_token"] = json!("<|start_header_id|>");
                j["cls_token"] = json!("<|begin_of_text|>");
            });
            c.edit_json("config.json", |j| {
                j["pad_token_id"] = json!(5);
                j["sep_token_id"] = json!(7);
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "a39d5d8c6ca8923c9545bfa5d9e3bcbcc0f0f0363b849c9fc02e691d9f93da53",
    },
    Variant {
        name: "named templates",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer_config.json", |j| j["chat_template"] = json!([{"name": "tool use", "template": "T{{x}}"}, {"name": "default", "template": "D{{y}}"}]));
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "d7af4e42040d39a1baeacfc275de1ffaea2edd99c9c6c45b23f74c314a06f368",
    },
    Variant {
        name: "templates in files",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer_config.json", |j| remove(j, &["chat_template"]));
            c.write("chat_template.jinja", "J{{x}}\r\nq");
            c.write("additional_chat_templates/tool.jinja", "TT");
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "6265bd7b10dae29497ba31bc87b4c9e96b9d3bec2968ae745881b9b775819b3c",
    },
    Variant {
        name: "a template in JSON",
        reference: "llama",
        change: |c| {
            c.edit_json("tokenizer_config.json", |j| remove(j, &["chat_template"]));
            c.write("chat_template.json", r#"{"chat_template":"JS"}"#);
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "7405cf0e074a7d9eda7adbf9c57521cbbf8ef290dee74877ce82f7b8a959b236",
    },
    Variant {
        name: "a token made special",
        reference: "qwen3",
        change: |c| {
            c.edit_json("tokenizer_config.json", |j| {
                let decoder = j["added_tokens_decoder"].as_object_mut().unwrap();
                for token in decoder.values_mut() {
                    if token["content"] == "<think>" {
                        token["special"] = json!(true);
                    }
                }
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "3f2be544db923122acb684c53af46ddc3d143408dfc287db2d2923c3f115c5df",
    },
    Variant {
        name: "a lower-case normalizer",
        reference: "qwen3",
        change: |c| {
            c.edit_json("tokenizer.json", |j| j["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}));
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "998892fbd3f76866ba72b6f1b9cc4537d46c6b9fd6401caca541305efbeaa5f2",
    },
    Variant {
        name: "an id in the config",
        reference: "llama",
        change: |c| {
            c.edit_json("config.json", |j| {
                j["_name_or_path"] = json!("org-x/Some-Model-3B-chat")
            });
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "d2f273ea7aea3cf61b324b5c80078e7f306e6ed1069a8a87a95170d6fcb5f416",
    },
    Variant {
        name: "every kind of sampling",
        reference: "llama",
        change: |c| {
            c.write("generation_config.json", json!({"repetition_penalty": 1.05, "temperature": 1, "min_p": 0.1, "top_k": null, "mirostat": 2, "mirostat_tau": 5.0, "sequence": "k;p", "xtc_threshold": 0.1, "penalty_last_n": 64}).to_string());
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "c952fc1b6dba385e09b40c975b0f5ee74a49be85e86c8f7ea3235acfe46ec948",
    },
    Variant {
        name: "a base model in fields",
        reference: "llama",
        change: |c| {
            c.write("README.md", "---\nlanguage:\n- no\n- en\nbase_model:\n- name: X\n  organization: Y\n  repo_url: Z\n---\n");
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "a65ecc465ee2390079de6b188cb51c252fa9fd836f0db84859a5bf8586fc3b7c",
    },
    Variant {
        name: "a card with names",
        reference: "llama",
        change: |c| {
            c.write("README.md", "---\nbase_model: Qwen/Qwen3-8B\nbase_model_relation: finetune\nversion: \"1.0\"\nfinetune: chatty\nbasename: Bas Name\nsize_label: 7B\n---\n");
        },
        outtype: OutType::BF16,
        mtp: MtpMode::Inline,
        sha256: "7c85e2b5cb9c15186af63ba9a5928207360e0bda5fd24a554560ba4796501112",
    },
];

#[test]
fn files_are_those_of_the_reference() {
    let mut failures = Vec::new();
    for variant in VARIANTS {
        let checkpoint = Checkpoint::of(variant.reference);
        (variant.change)(&checkpoint);
        let converted = checkpoint.convert(variant.outtype, variant.mtp);
        let converted = converted.unwrap_or_else(|e| panic!("{}: {e}", variant.name));
        let path = checkpoint.path("out.gguf");
        write(
            &[Output {
                plan: &converted.plan,
                path: &path,
            }],
            &WriteConfig::new(),
        )
        .expect("the disk has room");
        let digest = Sha256::digest(std::fs::read(&path).expect("was just written"));
        let sha256: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        if sha256 != variant.sha256 {
            failures.push(variant.name);
        }
    }
    assert!(failures.is_empty(), "other files: {failures:?}");
}
