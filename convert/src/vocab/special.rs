//! Special tokens: begin and end of sequence, padding and others, and whether they are added to texts.
//!
//! `tokenizer_config.json` names them, else `config.json`; the post-processor of `tokenizer.json`
//! determines which are added, else `tokenizer_config.json`. Keys are written in the order in which they
//! are found.

use indexmap::IndexMap;
use schemas::gguf::Metadata;
use serde_json::{Map, Value};

use super::files::TokenizerFiles;
use crate::hf_config::HfConfig;
use crate::note::Note;

/// A role, by the name used in fields.
type Role = &'static str;

/// Roles named by tokenizer files, in lookup order.
const NAMED: [Role; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];
/// Roles with a key for adding them to texts.
const ADDED: [Role; 3] = ["bos", "eos", "sep"];

/// Returns the key of a role's token.
fn id_key(role: Role) -> Option<&'static str> {
    Some(match role {
        "bos" => "tokenizer.ggml.bos_token_id",
        "eos" => "tokenizer.ggml.eos_token_id",
        "unk" => "tokenizer.ggml.unknown_token_id",
        // The misspelling is GGUF's.
        "sep" => "tokenizer.ggml.seperator_token_id",
        "pad" => "tokenizer.ggml.padding_token_id",
        "mask" => "tokenizer.ggml.mask_token_id",
        "eot" => "tokenizer.ggml.eot_token_id",
        "eom" => "tokenizer.ggml.eom_token_id",
        _ => return None,
    })
}

/// Writes the ids of special tokens and the flags for adding them.
pub(super) fn write(
    files: &TokenizerFiles,
    config: &HfConfig,
    n_vocab: u64,
    out: &mut Metadata,
    notes: &mut Vec<Note>,
) {
    let mut special = Special::new(files.config.as_ref());
    special.post_process(files.tokenizer.get("post_processor"));
    if let Some(tokenizer_config) = &files.config {
        special.read_config(tokenizer_config, files.tokenizer.get("added_tokens"));
    }
    special.read_model_config(config, notes);
    special.read_family(files.tokenizer.get("added_tokens"));
    for (&role, &id) in &special.ids {
        let Some(key) = id_key(role) else { continue };
        match u32::try_from(id).ok().filter(|&id| u64::from(id) < n_vocab) {
            Some(id) => out.set(key, id),
            None => notes.push(Note::SpecialId {
                role: role.to_owned(),
                id,
            }),
        }
    }
    for (&role, &add) in &special.add {
        if ADDED.contains(&role) {
            out.set(format!("tokenizer.ggml.add_{role}_token"), add);
        }
    }
}

/// Special tokens found so far.
struct Special {
    /// Roles to look up.
    roles: Vec<Role>,
    /// Token text by role.
    texts: IndexMap<Role, String>,
    /// True if there is a `tokenizer_config.json`; without it, ids are not derived from texts.
    has_config: bool,
    /// Token id by role.
    ids: IndexMap<Role, u64>,
    /// True if the token is added to texts, by role.
    add: IndexMap<Role, bool>,
}

impl Special {
    fn new(config: Option<&Map<String, Value>>) -> Special {
        let text = |role: &Role| {
            let entry = config?.get(&format!("{role}_token"))?;
            let text = entry.as_str().or_else(|| entry.get("content")?.as_str())?;
            Some((*role, text.to_owned())).filter(|(_, text)| !text.is_empty())
        };
        let mut special = Special {
            roles: NAMED.to_vec(),
            texts: NAMED.iter().filter_map(text).collect(),
            has_config: config.is_some(),
            ids: IndexMap::new(),
            add: IndexMap::new(),
        };
        // Tokenizers of the BERT family use other names for these.
        special.substitute("bos", "cls");
        special.substitute("eos", "sep");
        special
    }

    fn is(&self, role: Role, text: &str) -> bool {
        self.texts.get(role).is_some_and(|known| known == text)
    }

    /// Uses the token of another role if this role has none.
    fn substitute(&mut self, role: Role, other: Role) {
        if let Some(text) = self.texts.get(other).cloned() {
            self.texts.entry(role).or_insert(text);
        }
    }

    /// Reads the post-processor: which tokens it adds, and where.
    fn post_process(&mut self, processor: Option<&Value>) {
        let Some(processor) = processor else { return };
        let steps = processor.get("processors").and_then(Value::as_array);
        let steps = steps.map_or(std::slice::from_ref(processor), Vec::as_slice);
        for step in steps {
            match step.get("type").and_then(Value::as_str) {
                Some("ByteLevel") => {
                    self.add.entry("bos").or_insert(false);
                    self.add.entry("eos").or_insert(false);
                }
                Some("RobertaProcessing") => {
                    for role in ADDED {
                        self.add.insert(role, true);
                    }
                    for role in ["cls", "sep"] {
                        let text = step.pointer(&format!("/{role}/0")).and_then(Value::as_str);
                        if let Some(text) = text {
                            self.texts.entry(role).or_insert(text.to_owned());
                        }
                    }
                }
                Some("TemplateProcessing") => self.read_template(step),
                _ => {}
            }
        }
    }

    /// Reads a template: the tokens around one text, and between two.
    fn read_template(&mut self, step: &Value) {
        let items = |name: &str| {
            let items = step.get(name).and_then(Value::as_array);
            items.map_or(&[][..], Vec::as_slice)
        };
        let (first, last) = match items("single") {
            [first, .., last] => (special_text(first), special_text(last)),
            _ => (None, None),
        };
        if let Some(first) = first {
            self.texts.entry("bos").or_insert(first.to_owned());
            self.texts.entry("cls").or_insert(first.to_owned());
            let known = self.is("bos", first) || self.is("cls", first);
            self.add.insert("bos", known);
        }
        if let Some(last) = last {
            if !self.is("eos", last) {
                self.replace_eos(last);
            }
            self.add.insert("eos", true);
        }
        let mut pair = items("pair");
        if let ([item, rest @ ..], true) = (pair, first.is_some())
            && special_text(item) == first
        {
            pair = rest;
        }
        if let ([rest @ .., item], true) = (pair, last.is_some())
            && special_text(item) == last
        {
            pair = rest;
        }
        let [a, between @ .., b] = pair else { return };
        if sequence_id(a) != Some("A") || sequence_id(b) != Some("B") || between.is_empty() {
            return;
        }
        let separates = |item: &Value| {
            special_text(item).is_some_and(|text| self.is("sep", text) || self.is("eos", text))
        };
        // The end token of the first text also separates, but is already added as such.
        let add_sep = (separates(&between[0]) && last.is_none())
            || (between.len() == 2 && separates(&between[1]));
        self.add.insert("sep", add_sep);
        if add_sep {
            self.substitute("sep", "eos");
        }
    }

    /// Makes the token that a template appends the end-of-sequence token; the token named so before ends a
    /// turn or a message.
    fn replace_eos(&mut self, text: &str) {
        let old = self.texts.insert("eos", text.to_owned());
        if !self.has_config {
            return;
        }
        let unused = ["eot", "eom"]
            .into_iter()
            .find(|role| !self.roles.contains(role));
        if let Some(role) = unused {
            self.roles.push(role);
            if let Some(old) = old {
                self.texts.insert(role, old);
            }
        }
    }

    /// Reads flags of `tokenizer_config.json`, and ids of token texts from the added tokens.
    fn read_config(&mut self, config: &Map<String, Value>, added: Option<&Value>) {
        let added = added
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        for &role in &self.roles {
            if let Some(Value::Bool(add)) = config.get(&format!("add_{role}_token")) {
                self.add.entry(role).or_insert(*add);
            }
            let id = self.texts.get(role).and_then(|text| {
                let is_text = |token: &&Value| token.get("content") == Some(&Value::from(&**text));
                added.iter().find(is_text)?.get("id")?.as_u64()
            });
            if let Some(id) = id {
                self.ids.insert(role, id);
            }
        }
    }

    /// Adds the known special tokens of a model family, for roles without an id.
    fn read_family(&mut self, added: Option<&Value>) {
        let added = added
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        let id = |text: &str| {
            let is_text = |token: &&Value| token.get("content") == Some(&Value::from(text));
            added.iter().find(is_text)?.get("id")?.as_u64()
        };
        for family in FAMILIES {
            let ids: Option<Vec<_>> = family.iter().map(|(_, text)| id(text)).collect();
            for (&(role, _), id) in family.iter().zip(ids.into_iter().flatten()) {
                self.ids.entry(role).or_insert(id);
            }
        }
    }

    /// Reads ids from `config.json`, for roles without an id.
    fn read_model_config(&mut self, config: &HfConfig, notes: &mut Vec<Note>) {
        for &role in &self.roles {
            let field = format!("{role}_token_id");
            let value = config.root.get(&field).filter(|value| !value.is_null());
            let value = value.or_else(|| config.root.get("text_config")?.get(&field));
            let (None, Some(value)) = (self.ids.get(role), value) else {
                continue;
            };
            if let Some(id) = value.as_u64() {
                self.ids.insert(role, id);
            }
            // Without an end-of-sequence token generation would not stop, so the first of several is used.
            let list = value.as_array().filter(|_| role == "eos");
            let list = list.map(|ids| ids.iter().filter_map(Value::as_u64).collect::<Vec<_>>());
            if let Some([used, others @ ..]) = list.as_deref() {
                self.ids.insert(role, *used);
                notes.push(Note::FirstEos {
                    used: *used,
                    others: others.to_vec(),
                });
            }
        }
    }
}

/// Special tokens that files do not name, per family; they apply if the vocabulary has all of them.
const FAMILIES: [&[(Role, &str)]; 1] = [
    // GLM: with the end-of-text token as end of turn, generation would stop too late.
    &[
        ("bos", "[gMASK]"),
        ("eot", "<|user|>"),
        ("unk", "<|endoftext|>"),
        ("eom", "<|observation|>"),
    ],
];

/// Returns the text of a template item, if it is a special token.
fn special_text(item: &Value) -> Option<&str> {
    let text = item.pointer("/SpecialToken/id")?.as_str()?;
    (!text.is_empty()).then_some(text)
}

/// Returns the name of the text that a template item inserts.
fn sequence_id(item: &Value) -> Option<&str> {
    item.pointer("/Sequence/id")?.as_str()
}
