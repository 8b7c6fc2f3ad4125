//! Comparison with the reference checkpoints: token ids that the tokenizers of the checkpoints and
//! llama.cpp produced for difficult texts, and random texts through the checkpoints' own
//! tokenizers.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use schemas::gguf::Metadata;
use serde_json::Value;

use super::*;

/// Byte-level vocabularies, with the tokenizers they were made from.
const CHECKPOINTS: [&str; 5] = ["llama", "qwen3", "qwen35", "qwen35-256", "qwen35moe"];
/// SentencePiece vocabularies; one of them adds a space before texts.
const PIECES: [&str; 2] = ["llama-spm", "gemma3"];

/// Encodes the whole text, control tokens included, and adds nothing.
const EXACT: EncodeConfig = EncodeConfig {
    add_special: false,
    parse_special: true,
};

fn reference(checkpoint: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/reference")
        .join(checkpoint)
        .join(file)
}

fn json(checkpoint: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(reference(checkpoint, file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the tokenizer keys of llama.cpp's conversion of a checkpoint.
fn metadata(checkpoint: &str) -> Metadata {
    let golden = json(checkpoint, "golden.json");
    let mut metadata = Metadata::new();
    for entry in golden["outputs"]["f32"]["kv"].as_array().unwrap() {
        let key = entry["key"].as_str().unwrap();
        if !key.starts_with("tokenizer.ggml.") {
            continue;
        }
        let items = match entry["ref"].as_str() {
            Some(array) => &golden["arrays"][array],
            None => &entry["value"],
        };
        match (entry["type"].as_str().unwrap(), entry["item"].as_str()) {
            ("string", _) => metadata.set(key, items.as_str().unwrap()),
            ("bool", _) => metadata.set(key, items.as_bool().unwrap()),
            ("uint32", _) => metadata.set(key, ids(items.as_u64().unwrap())),
            ("array", Some("string")) => {
                let texts = items
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|x| x.as_str().unwrap().to_owned());
                metadata.set(key, texts.collect::<Vec<String>>());
            }
            ("array", Some("float32")) => {
                let scores = items.as_array().unwrap().iter();
                let scores = scores.map(|x| x.as_f64().unwrap() as f32);
                metadata.set(key, scores.collect::<Vec<f32>>());
            }
            ("array", Some("int32")) => {
                let types = items
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|x| x.as_i64().unwrap() as i32);
                metadata.set(key, types.collect::<Vec<i32>>());
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    metadata
}

fn ids(id: u64) -> u32 {
    id.try_into().unwrap()
}

fn token_list(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| ids(id.as_u64().unwrap()))
        .collect()
}

fn tokenizer(checkpoint: &str) -> Tokenizer {
    Tokenizer::from_metadata(&metadata(checkpoint)).unwrap()
}

#[test]
fn awkward_texts() {
    for checkpoint in CHECKPOINTS {
        let tokenizer = tokenizer(checkpoint);
        for case in json(checkpoint, "logits.json")["tokenizer_cases"]
            .as_array()
            .unwrap()
        {
            let text = case["text"].as_str().unwrap();
            let expected = token_list(case.get("peer_ids").unwrap_or(&case["ids"]));
            assert_eq!(
                tokenizer.encode(text, EXACT),
                expected,
                "{checkpoint}: {text:?}"
            );
            assert_eq!(tokenizer.decode(&expected, ControlText::Show), text);
        }
    }
}

/// Expected ids come from SentencePiece itself. Decoded texts keep the space that was added before
/// them.
#[test]
fn awkward_texts_in_pieces() {
    for checkpoint in PIECES {
        let tokenizer = tokenizer(checkpoint);
        let logits = json(checkpoint, "logits.json");
        for case in logits["tokenizer_cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let expected = token_list(&case["ids"]);
            let found = tokenizer.encode(text, EXACT);
            assert_eq!(found, expected, "{checkpoint}: {text:?}");
            let space = if checkpoint == "gemma3" || text.is_empty() {
                ""
            } else {
                " "
            };
            // The spelling of a space is decoded as a space.
            let shown = format!("{space}{text}").replace(pieces::SPACE, " ");
            assert_eq!(tokenizer.decode(&found, ControlText::Show), shown);
        }
        let prompt = logits["prompt_text"].as_str().unwrap();
        let expected = token_list(&logits["prompt"]);
        assert_eq!(tokenizer.encode(prompt, EXACT)[..expected.len()], expected);
    }
}

#[test]
fn pieces_and_named_tokens() {
    let tokenizer = tokenizer("llama-spm");
    let encode = |text, config| tokenizer.encode(text, config);
    assert_eq!(encode("", PROMPT), [1]);
    // A text after a named token gets the space prefix again.
    let (hello, end) = (encode("Hello", EXACT), encode("<|im_end|>", EXACT));
    assert_eq!(end, [502]);
    let both = encode("<|im_end|>Hello", EXACT);
    assert_eq!(both, [end, hello].concat());
    // The name of this token has real spaces, and is found by them.
    assert_eq!(encode("  tool", PLAIN), [503]);
    assert!(
        !encode("<s></s>", PLAIN)
            .iter()
            .any(|id| [1, 2].contains(id))
    );
    assert_eq!(encode("<s></s>", EXACT), [1, 2]);
    assert!(tokenizer.is_end_of_generation(2));
}

/// Adds the special tokens that the file's keys ask for.
const PROMPT: EncodeConfig = EncodeConfig {
    add_special: true,
    parse_special: true,
};

/// Configuration for untrusted text.
const PLAIN: EncodeConfig = EncodeConfig {
    add_special: false,
    parse_special: false,
};

/// The reference runs use only the first tokens of the prompt.
#[test]
fn reference_prompts() {
    for checkpoint in CHECKPOINTS {
        let logits = json(checkpoint, "logits.json");
        let text = logits["prompt_text"].as_str().unwrap();
        let tokens = tokenizer(checkpoint).encode(text, PROMPT);
        let expected = token_list(&logits["prompt"]);
        assert_eq!(tokens[..expected.len()], expected, "{checkpoint}");
    }
}

/// Texts with letters, digits, spaces and names of tokens, complete and broken.
const TEXT: &str =
    r"((?s).|[a-zA-Z' \n0-9]{1,8}|<\|im_end\|>|<think>|<\|im_|end\|>|<\|eot_id\|>){0,12}";

#[test]
fn any_text_as_the_checkpoints_own_tokenizer_reads_it() {
    let pairs = CHECKPOINTS.map(|checkpoint| {
        let path = reference(checkpoint, "tokenizer.json");
        let mut own = tokenizers::Tokenizer::from_file(path).unwrap();
        own.with_normalizer(None::<tokenizers::NormalizerWrapper>)
            .unwrap();
        (tokenizer(checkpoint), own)
    });
    proptest!(|(text in TEXT)| {
        for (tokenizer, own) in &pairs {
            let expected = own.encode_fast(text.as_str(), false).unwrap();
            let tokens = tokenizer.encode(&text, EXACT);
            prop_assert_eq!(&tokens, expected.get_ids());
            prop_assert_eq!(tokenizer.decode(&tokens, ControlText::Show), text.as_str());
            let plain = tokenizer.encode(&text, PLAIN);
            prop_assert_eq!(tokenizer.decode(&plain, ControlText::Skip), text.as_str());
        }
    });
}

#[test]
fn text_from_outside_cannot_forge_control_tokens() {
    let tokenizer = tokenizer("qwen35");
    let end = tokenizer.eos().unwrap();
    assert_eq!(tokenizer.encode("<|im_end|>", EXACT), [end]);
    assert!(!tokenizer.encode("<|im_end|>", PLAIN).contains(&end));
    // Names of user-defined tokens are converted either way.
    assert_eq!(
        tokenizer.encode("<think>", PLAIN),
        tokenizer.encode("<think>", EXACT)
    );
    assert_eq!(tokenizer.encode("<think>", PLAIN).len(), 1);
    assert_eq!(tokenizer.decode(&[end], ControlText::Skip), "");
    assert_eq!(tokenizer.decode(&[end], ControlText::Show), "<|im_end|>");
}

/// A vocabulary of single bytes in the order of their spelling, followed by named tokens.
fn byte_vocabulary(named: &[(&str, i32)]) -> Metadata {
    let mut tokens: Vec<String> = (0x100..0x100 + 33)
        .chain(0x21..0x7f)
        .chain(0x121..0x121 + 34)
        .chain(0xa1..0xad)
        .chain(0xae..0x100)
        .chain([0x143])
        .map(|code| char::from_u32(code).unwrap().to_string())
        .collect();
    let mut types = vec![1; tokens.len()];
    for (name, kind) in named {
        tokens.push((*name).to_owned());
        types.push(*kind);
    }
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", "gpt-2");
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.merges", Vec::<String>::new());
    metadata
}

#[test]
fn the_longest_name_wins() {
    let metadata = byte_vocabulary(&[("<a", 4), ("<a><a>", 4), ("<a>", 3)]);
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode("<a><a><a><a", EXACT), [257, 258, 256]);
    assert_eq!(tokenizer.encode("<a><a>", PLAIN), [257]);
    assert_eq!(tokenizer.token_bytes(256), b"<a");
    assert_eq!(tokenizer.token_bytes(9999), b"");
}

fn ends(metadata: &Metadata) -> Vec<u32> {
    let tokenizer = Tokenizer::from_metadata(metadata).unwrap();
    let ends = tokenizer.end_tokens().iter().copied().collect();
    assert!(
        tokenizer
            .end_tokens()
            .iter()
            .all(|&end| tokenizer.is_end_of_generation(end))
    );
    ends
}

/// llama.cpp lists the same tokens for files with these names.
#[test]
fn end_tokens_by_key_and_name() {
    for checkpoint in ["qwen3", "qwen35", "qwen35-256"] {
        let tokenizer = tokenizer(checkpoint);
        let eos = tokenizer.eos().unwrap();
        let name = |token: &u32| tokenizer.decode(&[*token], ControlText::Show);
        let names: Vec<String> = tokenizer.end_tokens().iter().map(name).collect();
        assert!(tokenizer.is_end_of_generation(eos));
        assert!(names.contains(&"<|endoftext|>".to_owned()), "{names:?}");
        assert!(!tokenizer.is_end_of_generation(eos - 1), "<|im_start|>");
    }
    let names = [
        ("<|im_end|>", 1),
        ("<|file_sep|>", 3),
        ("<mine>", 3),
        ("<|end|>", 3),
    ];
    let mut metadata = byte_vocabulary(&names);
    assert_eq!(ends(&metadata), [256, 257, 259]);
    metadata.set("tokenizer.ggml.eot_token_id", 258u32);
    metadata.set("tokenizer.ggml.fim_sep_token_id", 10u32);
    assert_eq!(ends(&metadata), [10, 256, 258, 259]);
    // A token that ends a text is a control token, whatever type the file declares.
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode("<|im_end|>", PLAIN).len(), 10);

    let inner = [("<|return|>", 3), ("<|call|>", 3), ("<|end|>", 3)];
    assert_eq!(ends(&byte_vocabulary(&inner)), [256, 257]);
    assert_eq!(ends(&byte_vocabulary(&inner[1..])), [256, 257]);
    assert_eq!(
        ends(&byte_vocabulary(&[("</s>", 1), ("<|tool_response>", 3)])),
        [257]
    );
}

#[test]
fn what_is_added_around_a_text() {
    let mut metadata = byte_vocabulary(&[("<s>", 3), ("</s>", 3)]);
    let encode = |metadata: &Metadata| -> Vec<u32> {
        let tokenizer = Tokenizer::from_metadata(metadata).unwrap();
        assert!(tokenizer.encode("", EXACT).is_empty());
        tokenizer.encode("", PROMPT)
    };
    metadata.set("tokenizer.ggml.bos_token_id", 256u32);
    metadata.set("tokenizer.ggml.eos_token_id", 257u32);
    assert!(encode(&metadata).is_empty());
    metadata.set("tokenizer.ggml.pre", "llama-bpe");
    assert_eq!(encode(&metadata), [256]);
    metadata.set("tokenizer.ggml.add_eos_token", true);
    assert_eq!(encode(&metadata), [256, 257]);
    metadata.set("tokenizer.ggml.add_bos_token", false);
    assert_eq!(encode(&metadata), [257]);
}

#[test]
fn unusable_metadata_is_explained() {
    type Break = fn(&mut Metadata);
    let strings = |texts: &[&str]| -> Vec<String> { texts.iter().map(|x| (*x).into()).collect() };
    let cases: [(Break, &str); 12] = [
        (
            |m| m.set("tokenizer.ggml.model", "bert"),
            "key tokenizer.ggml.model: expected gpt2 (byte-level BPE), gemma4 (BPE on characters) or llama (SentencePiece), found bert",
        ),
        (
            |m| drop(m.remove("tokenizer.ggml.model")),
            "key tokenizer.ggml.model is missing",
        ),
        (
            |m| m.set("tokenizer.ggml.pre", "qwen99"),
            "key tokenizer.ggml.pre: unknown pre-tokenizer qwen99, known are llama-bpe, ",
        ),
        (
            |m| drop(m.remove("tokenizer.ggml.tokens")),
            "key tokenizer.ggml.tokens is missing",
        ),
        (
            |m| drop(m.remove("tokenizer.ggml.merges")),
            "key tokenizer.ggml.merges is missing",
        ),
        (
            |m| m.set("tokenizer.ggml.token_type", vec![1i32; 3]),
            "key tokenizer.ggml.token_type: expected 257 elements, as in tokenizer.ggml.tokens, found 3",
        ),
        (
            |m| m.set("tokenizer.ggml.token_type", vec![7i32; 257]),
            "key tokenizer.ggml.token_type: element 0: expected a type from 0 to 6, found 7",
        ),
        (
            |m| m.set("tokenizer.ggml.eos_token_id", 257u32),
            "key tokenizer.ggml.eos_token_id: token 257 is outside the vocabulary of 257",
        ),
        (
            |m| m.set("tokenizer.ggml.fim_pad_token_id", 300u32),
            "key tokenizer.ggml.fim_pad_token_id: token 300 is outside the vocabulary of 257",
        ),
        (
            |m| m.set("tokenizer.ggml.add_bos_token", true),
            "key tokenizer.ggml.bos_token_id is missing",
        ),
        (
            |m| m.set("tokenizer.ggml.merges", vec!["a".to_owned()]),
            "key tokenizer.ggml.merges: element 0: not two texts with a space between",
        ),
        // Longer than any token: must be rejected before merging.
        (
            |m| m.set("tokenizer.ggml.merges", vec!["<s> <s>".to_owned()]),
            "key tokenizer.ggml.merges: element 0: \"<s><s>\" is not in the vocabulary",
        ),
    ];
    let message = |metadata: &Metadata| match Tokenizer::from_metadata(metadata) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    };
    for (spoil, expected) in cases {
        let mut metadata = byte_vocabulary(&[("<s>", 3)]);
        spoil(&mut metadata);
        let found = message(&metadata);
        assert!(found.starts_with(expected), "{found}");
    }
    let twice = byte_vocabulary(&[("<s>", 3), ("<s>", 3)]);
    assert_eq!(
        message(&twice),
        "key tokenizer.ggml.tokens: element 257: \"<s>\" is token 256 already"
    );
    let mut gaps = byte_vocabulary(&[]);
    gaps.set("tokenizer.ggml.tokens", strings(&["", "", "a"]));
    gaps.remove("tokenizer.ggml.token_type");
    let gaps = Tokenizer::from_metadata(&gaps).unwrap();
    assert_eq!(
        (gaps.n_tokens(), gaps.encode("aba", EXACT)),
        (3, vec![2, 2])
    );
}

proptest! {
    /// Single bytes are the hardest tokens to decode: any sequence can occur.
    #[test]
    fn a_stream_gives_the_text_of_all_tokens(
        tokens in prop::collection::vec(0u32..260, 0..30),
        text in r"[aé中🙂]{0,6}",
    ) {
        let metadata = byte_vocabulary(&[("<|im_end|>", 3), ("<think>", 4), ("[PAD]", 5)]);
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        let tokens = [tokenizer.encode(&text, PLAIN), tokens].concat();
        for control in [ControlText::Skip, ControlText::Show] {
            let mut stream = tokenizer.stream(control);
            let mut streamed = String::new();
            for &token in &tokens {
                streamed += &stream.push(token);
            }
            streamed += &stream.finish();
            prop_assert_eq!(streamed, tokenizer.decode(&tokens, control));
        }
    }
}

#[test]
fn a_stream_holds_back_half_a_character() {
    let tokenizer = Tokenizer::from_metadata(&byte_vocabulary(&[])).unwrap();
    let mut stream = tokenizer.stream(ControlText::Skip);
    let tokens = tokenizer.encode("é🙂!", PLAIN);
    let pushed: Vec<String> = tokens.iter().map(|&token| stream.push(token)).collect();
    assert_eq!(pushed, ["", "é", "", "", "", "🙂", "!"]);
    stream.push(tokens[0]);
    assert_eq!(stream.finish(), "\u{fffd}");
}
