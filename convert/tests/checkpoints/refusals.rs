//! Checkpoints that cannot be converted, with the error message, and checkpoints that convert with a note.

use crate::checkpoint::Checkpoint;
use convert::{MtpMode, OutType};
use safetensors::Dtype;
use serde_json::json;

/// A modification of a checkpoint, and the expected message.
struct Case {
    reference: &'static str,
    spoil: fn(&Checkpoint),
    message: &'static str,
}

fn check(cases: &[Case], mtp: MtpMode) {
    let mut failures = Vec::new();
    for case in cases {
        let checkpoint = Checkpoint::of(case.reference);
        (case.spoil)(&checkpoint);
        let message = checkpoint.refusal(mtp);
        if message != case.message {
            failures.push(format!("expected {}\nfound    {message}", case.message));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
}

#[test]
fn configs() {
    check(
        &[
            Case {
                reference: "llama",
                spoil: |c| c.remove("config.json"),
                message: ".: has no config.json; expected the folder of an HF checkpoint, or \
                          hf://org/name",
            },
            Case {
                reference: "llama",
                spoil: |c| c.write("config.json", "[1]"),
                message: "config.json: invalid type: sequence, expected a map at line 1 column 0",
            },
            Case {
                reference: "gemma3",
                spoil: |c| {
                    c.edit_json("config.json", |j| j["query_pre_attn_scalar"] = json!(16));
                },
                message: "config.json: query_pre_attn_scalar = 16 is not supported",
            },
            Case {
                reference: "gemma3",
                spoil: |c| {
                    c.edit_json("config.json", |j| j["attn_logit_softcapping"] = json!(50.0));
                },
                message: "config.json: attn_logit_softcapping = 50 is not supported",
            },
            Case {
                reference: "llama",
                spoil: |c| {
                    let class = json!(["LlamaForCasualLM"]);
                    c.edit_json("config.json", |j| j["architectures"] = class);
                },
                message: "config.json: model class \"LlamaForCasualLM\" is unknown; \
                          did you mean LlamaForCausalLM?",
            },
            Case {
                reference: "llama",
                spoil: |c| c.edit_json("config.json", |j| j["architectures"] = json!(null)),
                message: "config.json: field architectures is missing",
            },
            Case {
                reference: "llama",
                spoil: |c| {
                    let config = json!({"quant_method": "awq", "bits": 4});
                    c.edit_json("config.json", |j| j["quantization_config"] = config);
                },
                message: "config.json: quantization method \"awq\" is not supported; convert the \
                          original checkpoint instead",
            },
            Case {
                reference: "llama",
                spoil: |c| c.edit_json("config.json", |j| j["hidden_size"] = json!("64")),
                message: "config.json: field hidden_size: expected an integer from 0 to \
                          4294967295, found \"64\"",
            },
            Case {
                reference: "llama",
                spoil: |c| c.edit_json("config.json", |j| j["num_hidden_layers"] = json!(0)),
                message: "config.json: key llama.block_count: 0, expected 1 to 512",
            },
            Case {
                reference: "llama",
                spoil: |c| {
                    let scaling = json!({"type": "longrope", "factor": 4});
                    c.edit_json("config.json", |j| j["rope_scaling"] = scaling);
                },
                message: "config.json: rope_type = longrope is not supported",
            },
            Case {
                reference: "qwen3",
                spoil: |c| {
                    let scaling = json!({"rope_type": "llama3", "factor": 8});
                    c.edit_json("config.json", |j| j["rope_scaling"] = scaling);
                },
                message: "config.json: rope_type = llama3 is not supported",
            },
            Case {
                reference: "yarn-rope",
                spoil: |c| {
                    c.edit_json("config.json", |j| {
                        j["rope_parameters"]["truncate"] = json!(false);
                    });
                },
                message: "config.json: rope_parameters.truncate = false is not supported",
            },
            Case {
                reference: "yarn-rope",
                spoil: |c| {
                    c.edit_json("config.json", |j| {
                        j["rope_parameters"]["mscale"] = json!(1.0);
                        j["rope_parameters"]["mscale_all_dim"] = json!(1.0);
                    });
                },
                message: "config.json: rope_parameters.mscale = 1 is not supported",
            },
            Case {
                reference: "yarn-rope",
                spoil: |c| {
                    c.edit_json("config.json", |j| {
                        j["rope_parameters"]["factor"] = json!(null)
                    });
                },
                message: "config.json: field rope_parameters.factor is missing",
            },
            Case {
                reference: "deepseek2",
                spoil: |c| c.edit_json("config.json", |j| j["topk_method"] = json!("greedy")),
                message: "config.json: topk_method = greedy is not supported",
            },
            Case {
                reference: "deepseek2",
                spoil: |c| c.edit_json("config.json", |j| j["rope_interleave"] = json!(false)),
                message: "config.json: rope_interleave = false is not supported",
            },
            Case {
                reference: "deepseek2",
                spoil: |c| c.edit_json("config.json", |j| j["kv_lora_rank"] = json!(0)),
                message: "config.json: key deepseek2.attention.kv_lora_rank: 0, expected 1 to \
                          268435456",
            },
            Case {
                reference: "deepseek2",
                spoil: |c| c.edit_json("config.json", |j| j["qk_nope_head_dim"] = json!(0)),
                message: "config.json: key deepseek2.attention.key_length_mla: 8, expected more than rope.dimension_count 8",
            },
            Case {
                reference: "gpt-oss",
                spoil: |c| c.edit_json("config.json", |j| j["swiglu_limit"] = json!(10.0)),
                message: "config.json: swiglu_limit = 10 is not supported",
            },
            Case {
                reference: "gpt-oss",
                spoil: |c| {
                    c.edit_json("config.json", |j| {
                        j["rope_parameters"]["truncate"] = json!(true);
                    });
                },
                message: "config.json: rope_parameters.truncate = true is not supported",
            },
            Case {
                reference: "linear-rope",
                spoil: |c| {
                    c.edit_json("config.json", |j| {
                        j["rope_parameters"]["factor"] = json!(-4)
                    });
                },
                message: "config.json: key llama.rope.scaling.factor: -4, expected a positive \
                          number",
            },
            Case {
                reference: "qwen35",
                spoil: |c| {
                    c.edit_json("config.json", |j| {
                        j["text_config"]["layer_types"] = json!(["full_attention"]);
                    });
                },
                message: "config.json: field layer_types: expected an entry for each of 4 \
                          layers, found 1 entries",
            },
        ],
        MtpMode::Inline,
    );
}

#[test]
fn unknown_classes_are_rejected_with_those_that_are_supported() {
    let classes: Vec<&str> = convert::supported_classes().collect();
    let (shown, others) = classes.split_at(8);
    let supported = format!("{} and {} more", shown.join(", "), others.len());
    for (class, problem) in [
        ("GPTX", "unknown"),
        ("BloomForCausalLM", "known, but not supported yet"),
    ] {
        let checkpoint = Checkpoint::of("llama");
        checkpoint.edit_json("config.json", |j| j["architectures"] = json!([class]));
        assert_eq!(
            checkpoint.refusal(MtpMode::Inline),
            format!(
                "config.json: model class \"{class}\" is {problem} (supported: {supported}; \
                 --print-supported-models lists all)"
            )
        );
    }
}

#[test]
fn weights() {
    const INDEX: &str = "model.safetensors.index.json";
    check(
        &[
            Case {
                reference: "gpt-oss",
                spoil: |c| c.edit_weights(|all| all.retain(|t| !t.name.ends_with("_scales"))),
                message: "model.safetensors: tensor model.layers.0.mlp.experts.down_proj_blocks: \
                          U8 weights need their scales, but the checkpoint has no tensor \
                          model.layers.0.mlp.experts.down_proj_scales; download the whole checkpoint",
            },
            Case {
                reference: "gpt-oss",
                spoil: |c| {
                    c.edit_weights(|all| {
                        let name = "model.layers.0.mlp.experts.down_proj_scales";
                        let scales = all.iter_mut().find(|tensor| tensor.name == name);
                        scales.expect("is there").shape = vec![4, 32, 2];
                    });
                },
                message: "model.safetensors: tensor model.layers.0.mlp.experts.down_proj_scales: \
                          shape [4, 32, 2], expected scales for shape [4, 64, 1, 16] in blocks \
                          of [16]",
            },
            Case {
                reference: "qwen3",
                spoil: |c| c.remove("model.safetensors"),
                message: ".: no model*.safetensors files; expected the folder of an HF checkpoint",
            },
            Case {
                reference: "qwen3",
                spoil: |c| {
                    c.remove("model.safetensors");
                    c.write("pytorch_model.bin", "");
                },
                message: ".: no model*.safetensors files; pytorch_model*.bin is a pickle, which can run code and is not read: load it with transformers and save it as \
                          safetensors (save_pretrained)",
            },
            Case {
                reference: "qwen3",
                spoil: |c| {
                    let bytes = std::fs::read(c.path("model.safetensors")).unwrap();
                    c.write("model.safetensors", &bytes[..bytes.len() - 1]);
                },
                message: "model.safetensors: not a valid safetensors file (1044847 bytes): data of \
                          1035391 bytes, expected 1035392; download the file again",
            },
            Case {
                reference: "qwen3",
                spoil: |c| c.write("model.safetensors", [0xFF; 8]),
                message: "model.safetensors: not a valid safetensors file (8 bytes): a header of \
                          18446744073709551615 bytes, expected at most 0; is the file truncated, or a Git LFS pointer?",
            },
            Case {
                reference: "llama",
                spoil: |c| {
                    c.edit_json(INDEX, |j| {
                        j["weight_map"]["lm_head.weight"] = json!("../model.safetensors");
                    });
                },
                message: "model.safetensors.index.json: tensor lm_head.weight: \
                          \"../model.safetensors\" is not the name of a file in the folder of the index",
            },
            Case {
                reference: "llama",
                spoil: |c| {
                    c.edit_json(INDEX, |j| {
                        let map = j["weight_map"].as_object_mut().unwrap();
                        map.remove("lm_head.weight");
                        map.insert(
                            "more.weight".into(),
                            json!("model-00001-of-00002.safetensors"),
                        );
                    });
                },
                message: "model.safetensors.index.json: index and files disagree; only in the \
                          index: more.weight (model-00001-of-00002.safetensors); only in the \
                          files: lm_head.weight",
            },
            Case {
                reference: "llama",
                spoil: |c| c.remove("model-00002-of-00002.safetensors"),
                message: "model-00002-of-00002.safetensors: file is missing, expected by the index for model.layers.1.mlp.down_proj.weight, \
                          model.layers.1.mlp.up_proj.weight, \
                          model.layers.2.input_layernorm.weight, \
                          model.layers.2.mlp.down_proj.weight, \
                          model.layers.2.mlp.gate_proj.weight, model.layers.2.mlp.up_proj.weight, \
                          model.layers.2.post_attention_layernorm.weight, \
                          model.layers.2.self_attn.k_proj.weight and 31 more; download it",
            },
            Case {
                reference: "qwen3",
                spoil: |c| {
                    c.edit_weights(|tensors| {
                        tensors.retain(|t| !t.name.contains("layers.3.mlp"));
                    });
                },
                message: ".: missing tensors: model.layers.3.mlp.gate_proj.weight, \
                          model.layers.3.mlp.up_proj.weight, model.layers.3.mlp.down_proj.weight",
            },
            Case {
                reference: "qwen3",
                spoil: |c| c.edit_json("config.json", |j| j["num_hidden_layers"] = json!(7)),
                message: ".: tensors that architecture qwen3 does not have: \
                          model.layers.7.input_layernorm.weight, \
                          model.layers.7.mlp.down_proj.weight, \
                          model.layers.7.mlp.gate_proj.weight, model.layers.7.mlp.up_proj.weight, \
                          model.layers.7.post_attention_layernorm.weight, \
                          model.layers.7.self_attn.k_norm.weight, \
                          model.layers.7.self_attn.k_proj.weight, \
                          model.layers.7.self_attn.o_proj.weight and 3 more",
            },
            Case {
                reference: "qwen3",
                spoil: |c| c.edit_json("config.json", |j| j["intermediate_size"] = json!(96)),
                message: "model.safetensors: tensor model.layers.0.mlp.down_proj.weight: shape \
                          [64, 128], expected [64, 96] from config.json",
            },
            Case {
                reference: "qwen3",
                spoil: |c| c.edit_json("config.json", |j| j["vocab_size"] = json!(961)),
                message: "model.safetensors: tensor model.embed_tokens.weight: 960 rows, but \
                          config.json gives a vocabulary of 961 tokens",
            },
            Case {
                reference: "qwen3",
                spoil: |c| {
                    c.edit_weights(|tensors| {
                        let tensor = tensors.iter_mut().find(|t| t.name == "model.norm.weight");
                        tensor.unwrap().dtype = Dtype::I16;
                    });
                },
                message: "model.safetensors: tensor model.norm.weight: element type I16, expected \
                          F64, F32, F16, BF16, F8_E4M3 or F8_E5M2",
            },
            Case {
                reference: "qwen3",
                spoil: |c| {
                    c.edit_weights(|tensors| tensors.retain(|t| t.name != "lm_head.weight"));
                },
                message: ".: tie_word_embeddings is false, but the checkpoint has no tensor \
                          lm_head.weight",
            },
            Case {
                reference: "qwen35",
                spoil: |c| {
                    c.edit_weights(|tensors| {
                        let name = "model.language_model.norm.weight";
                        let mut twin = tensors.iter().find(|t| t.name == name).unwrap().clone();
                        twin.name = "model.norm.weight".to_owned();
                        tensors.push(twin);
                    });
                },
                message: "model.safetensors: tensor model.norm.weight: already stored as \
                          model.language_model.norm.weight in model.safetensors",
            },
        ],
        MtpMode::Inline,
    );
}

/// Returns a safetensors file with that header and `n_data` bytes of data.
fn safetensors(header: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

#[test]
fn headers() {
    let entry = |name: &str, dtype: &str, shape: &str, offsets: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let a = entry("a", "F32", "[2]", "[0,8]");
    for (entries, n_data, message) in [
        (
            vec![a.clone(), entry("b", "F32", "[1]", "[4,8]")],
            8,
            "tensor b: begins at byte 4 of the data, inside a, which ends at 8",
        ),
        (
            vec![a.clone(), entry("b", "F32", "[1]", "[12,16]")],
            16,
            "tensor b: begins at byte 12 of the data, but the tensor before it ends at 8",
        ),
        (
            vec![
                entry("b", "F32", "[1]", "[8,12]"),
                a.clone(),
                entry("b", "F32", "[1]", "[12,16]"),
            ],
            16,
            "tensor b: listed twice",
        ),
        (
            vec![a.clone(), entry("b", "BF16", "[3,1]", "[8,12]")],
            12,
            "tensor b: 4 bytes at 8, but BF16 [3, 1] takes 6",
        ),
        (
            vec![entry("b", "U8", "[4294967296,4294967296]", "[0,0]")],
            0,
            "tensor b: 0 bytes at 0, but U8 [4294967296, 4294967296] takes an invalid number of bytes",
        ),
        (
            vec![entry("b", "U8", "[1]", "[1,0]")],
            0,
            "tensor b: -1 bytes at 1, but U8 [1] takes 1",
        ),
        (
            vec![a.clone()],
            9,
            "data of 9 bytes, expected 8; download the file again",
        ),
    ] {
        let checkpoint = Checkpoint::of("qwen3");
        let file = safetensors(&format!("{{{}}}", entries.join(",")), n_data);
        checkpoint.write("model.safetensors", &file);
        let expected = format!(
            "model.safetensors: not a valid safetensors file ({} bytes): {message}",
            file.len()
        );
        assert_eq!(checkpoint.refusal(MtpMode::Inline), expected);
    }
}

#[test]
fn tokenizers() {
    const FILE: &str = "tokenizer.json";
    check(
        &[
            Case {
                reference: "llama",
                spoil: |c| c.remove(FILE),
                message: ".: no tokenizer: neither tokenizer.json nor tokenizer.model nor tiktoken.model",
            },
            Case {
                reference: "llama",
                spoil: |c| {
                    c.remove(FILE);
                    c.write("tokenizer.model", "");
                },
                message: "tokenizer.model: a file without pieces is not supported; expected \
                          byte-level BPE or SentencePiece",
            },
            Case {
                reference: "llama-spm",
                spoil: |c| c.write("tokenizer.model", [0x0a, 0xff]),
                message: "tokenizer.model: not a SentencePiece model: failed to decode Protobuf \
                          message: ModelProto.pieces: invalid varint",
            },
            Case {
                reference: "llama-spm",
                spoil: |c| c.write("added_tokens.json", r#"{"<more>": 512}"#),
                message: "tokenizer.json: token \"<more>\" has id 512, but the vocabulary has 512 \
                          tokens",
            },
            Case {
                reference: "llama",
                spoil: |c| c.edit_json(FILE, |j| j["model"]["type"] = json!("Unigram")),
                message: "tokenizer.json: model type Unigram is not supported; expected \
                          byte-level BPE or SentencePiece",
            },
            Case {
                reference: "llama",
                spoil: |c| c.edit_json(FILE, |j| j["pre_tokenizer"] = json!(null)),
                message: "tokenizer.json: a BPE tokenizer that is neither byte-level nor SentencePiece is \
                          not supported; expected byte-level BPE or SentencePiece",
            },
            Case {
                reference: "llama",
                spoil: |c| {
                    c.edit_json(FILE, |j| {
                        j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("\\w+");
                    });
                },
                message: "tokenizer.json: unknown pre-tokenizer pattern [\"\\\\w+\"]; known: \
                          glm4, llama-bpe, qwen2, qwen35, gpt-2, smollm, deepseek-llm, deepseek-v3 and 2 more",
            },
            Case {
                reference: "llama",
                spoil: |c| {
                    c.edit_json(FILE, |j| j["added_tokens"][0]["content"] = json!("the"));
                },
                message: "tokenizer.json: id 1000 belongs to two tokens, \"the\" and \"<|begin_of_text|>\"",
            },
            Case {
                reference: "qwen3",
                spoil: |c| {
                    c.edit_json("tokenizer_config.json", |j| {
                        j["added_tokens_decoder"]["921"] = json!({"content": "!"});
                    });
                },
                message: "tokenizer.json: tokens 0 and 921 have the same text \"!\"",
            },
            Case {
                reference: "qwen3",
                spoil: |c| c.edit_json(FILE, |j| j["model"]["vocab"]["new"] = json!(960)),
                message: "tokenizer.json: token \"new\" has id 960, but the vocabulary has 960 \
                          tokens",
            },
            Case {
                reference: "qwen3",
                spoil: |c| c.edit_json(FILE, |j| j["model"]["vocab"]["new"] = json!(5)),
                message: "tokenizer.json: id 5 belongs to two tokens, \"&\" and \"new\"",
            },
            Case {
                reference: "qwen3",
                spoil: |c| c.edit_json(FILE, |j| j["model"]["merges"] = json!([])),
                message: "tokenizer.json: field model.merges: expected a merge, found nothing",
            },
        ],
        MtpMode::Inline,
    );
}

fn drop_mtp(checkpoint: &Checkpoint) {
    checkpoint.edit_weights(|tensors| tensors.retain(|t| !t.name.starts_with("mtp.")));
}

#[test]
fn heads_alone() {
    check(
        &[
            Case {
                reference: "qwen35",
                spoil: drop_mtp,
                message: ".: no MTP head to write: missing tensors: mtp.fc.weight, \
                          mtp.pre_fc_norm_embedding.weight, mtp.pre_fc_norm_hidden.weight, \
                          mtp.layers.0.input_layernorm.weight, \
                          mtp.layers.0.self_attn.q_proj.weight, \
                          mtp.layers.0.self_attn.k_proj.weight, \
                          mtp.layers.0.self_attn.v_proj.weight, \
                          mtp.layers.0.self_attn.o_proj.weight and 6 more; MTP layers in \
                          config.json: 1, so the checkpoint was saved without them",
            },
            Case {
                reference: "qwen3",
                spoil: |_| {},
                message: ".: architecture qwen3 has no MTP head to write",
            },
            Case {
                reference: "qwen35",
                spoil: |c| {
                    c.edit_weights(|tensors| tensors.retain(|t| t.name != "mtp.fc.weight"));
                },
                message: ".: missing tensors: mtp.fc.weight",
            },
            Case {
                reference: "qwen35",
                spoil: |c| {
                    c.edit_weights(|tensors| {
                        for tensor in tensors {
                            tensor.name = tensor.name.replace("mtp.layers.0", "mtp.layers.7");
                        }
                    });
                },
                message: ".: 8 MTP layers, expected at most 1: checkpoints of this family have one projection for all",
            },
        ],
        MtpMode::Only,
    );
}

#[test]
fn a_trunk_without_its_head_declares_none() {
    let checkpoint = Checkpoint::of("qwen35");
    drop_mtp(&checkpoint);
    let converted = checkpoint.convert(OutType::BF16, MtpMode::Inline).unwrap();
    let metadata = &converted.plan.metadata;
    assert_eq!(metadata.u32("qwen35.block_count"), Ok(Some(4)));
    assert!(!metadata.contains("qwen35.nextn_predict_layers"));
    let recurrent = metadata.bools("qwen35.attention.recurrent_layers");
    assert_eq!(recurrent, Ok(Some(&[true, true, true, false][..])));
    let notes: Vec<_> = converted.notes.iter().map(ToString::to_string).collect();
    let expected = "MTP layers in config.json: 1, but the checkpoint has no tensors of one: written as a model without an MTP head; graft-mtp adds a head from another file";
    assert!(notes.iter().any(|note| note == expected), "{notes:?}");

    // The opposite case: the config declares no head, but the tensors exist; the tensors decide.
    let checkpoint = Checkpoint::of("qwen35");
    checkpoint.edit_json("config.json", |j| {
        let text = j["text_config"].as_object_mut().unwrap();
        text.remove("mtp_num_hidden_layers");
    });
    let converted = checkpoint.convert(OutType::BF16, MtpMode::Inline).unwrap();
    let n_mtp = converted.plan.metadata.u32("qwen35.nextn_predict_layers");
    assert_eq!(n_mtp, Ok(Some(1)));
}

#[test]
fn notes_say_what_was_decided() {
    fn to_f32(checkpoint: &Checkpoint) {
        checkpoint.edit_weights(|tensors| {
            for tensor in tensors.iter_mut().filter(|t| t.dtype == Dtype::BF16) {
                let (halves, _) = tensor.bytes.as_chunks::<2>();
                tensor.bytes = halves.iter().flat_map(|&[a, b]| [0, 0, a, b]).collect();
                tensor.dtype = Dtype::F32;
            }
        });
    }
    let nfc = "tokenizer.json: normalizer NFC is not stored: texts that it changes give other \
               tokens";
    type Change = fn(&Checkpoint);
    let cases: [(&str, Change, OutType, &[&str]); 6] = [
        ("llama", |_| {}, OutType::BF16, &[]),
        (
            "llama",
            to_f32,
            OutType::Auto,
            &[
                "type auto: 44 F32 matrices are narrowed to F16; type f32 keeps them",
                "type auto: F16, because no matrix is stored in 16 bits",
            ],
        ),
        (
            "qwen3",
            |_| {},
            OutType::Auto,
            &["type auto: BF16, the type of tensor lm_head.weight", nfc],
        ),
        (
            "qwen3",
            |c| {
                c.edit_json("config.json", |j| {
                    j.as_object_mut().unwrap().remove("rms_norm_eps");
                    j["sliding_window"] = json!(4096);
                    j["use_sliding_window"] = json!(true);
                });
                c.write("README.md", "---\n{[\n---\n");
            },
            OutType::F32,
            &[
                "config.json: absent fields are filled with defaults: rms_norm_eps = 1e-6",
                "sliding_window = 4096 is not stored: readers attend to the whole context",
                nfc,
                "README.md is ignored: its front matter is not YAML: did not find expected node \
                 content at line 2 column 1, while parsing a flow node",
            ],
        ),
        (
            "llama",
            |c| {
                c.edit_json("tokenizer_config.json", |j| {
                    j.as_object_mut().unwrap().remove("eos_token");
                    j.as_object_mut().unwrap().remove("pad_token");
                });
                c.edit_json("config.json", |j| {
                    j["eos_token_id"] = json!([1007, 1001]);
                    j["pad_token_id"] = json!(1009);
                });
            },
            OutType::F32,
            &[
                "config.json: eos_token_id: 1007 is the end-of-sequence token, [1001] are left out",
                "pad token: id 1009 is not in the vocabulary, left out",
            ],
        ),
        (
            "qwen3",
            |c| {
                c.edit_json("config.json", |j| {
                    j["rope_scaling"] = json!({"type": "dynamic"})
                });
                c.write("generation_config.json", "{");
            },
            OutType::F32,
            &[
                "rope_type \"dynamic\" is unknown: written without scaling",
                nfc,
                "generation_config.json is ignored: EOF while parsing an object at line 1 \
                 column 1",
            ],
        ),
    ];
    for (reference, change, outtype, expected) in cases {
        let checkpoint = Checkpoint::of(reference);
        change(&checkpoint);
        assert_eq!(checkpoint.notes(outtype), expected, "{reference}");
    }
}

#[test]
fn weights_out_of_range_are_named_when_they_are_read() {
    let checkpoint = Checkpoint::of("qwen3");
    checkpoint.edit_weights(|tensors| {
        let tensor = tensors.iter_mut().find(|t| t.name == "lm_head.weight");
        // 2^17 in BF16, at row 1, column 2.
        tensor.unwrap().bytes[2 * 66..][..2].copy_from_slice(&0x4800u16.to_le_bytes());
    });
    let converted = checkpoint.convert(OutType::F16, MtpMode::Inline).unwrap();
    let head = converted.plan.tensor("output.weight").unwrap();
    assert_eq!(
        head.read_all().unwrap_err().to_string(),
        "row 1, column 2: 131072 does not fit in F16; use type bf16 or f32"
    );
    let converted = checkpoint.convert(OutType::BF16, MtpMode::Inline).unwrap();
    let head = converted.plan.tensor("output.weight").unwrap();
    assert!(
        head.source.origin().is_some(),
        "unchanged tensors are places in the checkpoint"
    );
}
