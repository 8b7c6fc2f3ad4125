//! [`Passport`]s in the keys of a file: the result of `specrun verify --stamp`, under `specconv.verify.*`. Other
//! readers ignore these keys.
//!
//! A passport states hashes of the tensors and of the settings that were verified, so it expires when they change. A
//! third hash, over the passport's own keys, shows edits of them. None is a signature: a forger can compute all.

use sha2::{Digest, Sha256};

use crate::arch::keys::ARCHITECTURE;
use crate::gguf::{self, Algorithm, Array, HashError, KeyError, Metadata, Plan, Value};
use crate::report::Passport;

/// Prefix of the keys.
pub const PREFIX: &str = "specconv.verify.";
/// Key of the SHA-256 over the other keys of the passport.
const KEYS_SHA256: &str = "specconv.verify.keys_sha256";
/// Key whose value is absent if no speed was measured.
const SPEEDUP: &str = "specconv.verify.speedup";

/// Hashes the tensors of a model with `threads` threads, 0 for one per core: SHA-256 over a line
/// `NAME TYPE SHAPE SHA256` for each tensor in file order, with the shape as in `64x32`. Shards of a split model
/// have the hash of the model if they are opened together.
///
/// # Errors
/// A tensor cannot be read, or `cancelled` returned true.
pub fn tensors_sha256(
    plan: &Plan,
    threads: usize,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<String, HashError> {
    let hashes = gguf::hashes(plan, Algorithm::Sha256, threads, cancelled)?;
    let mut state = Sha256::new();
    for (tensor, hash) in plan.tensors.iter().zip(&hashes.tensors) {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let (name, dtype, shape) = (&tensor.name, tensor.dtype, shape.join("x"));
        state.update(format!("{name} {dtype} {shape} {hash}\n"));
    }
    Ok(hex(state))
}

/// Hashes the keys that decide about the results of a model: those of its architecture and of its tokenizer, without
/// chat templates. SHA-256 over a line `KEY TYPE VALUE` for each key, in the order of their names.
pub fn settings_sha256(metadata: &Metadata) -> String {
    let architecture = metadata.str(ARCHITECTURE).ok().flatten();
    let own = format!("{}.", architecture.unwrap_or_default());
    hash_of_keys(metadata, |key| {
        let is_template = key.starts_with("tokenizer.chat_template");
        key == ARCHITECTURE
            || key.starts_with(&own)
            || key.starts_with("tokenizer.") && !is_template
    })
}

/// Replaces the passport of a file.
pub fn write(passport: &Passport, metadata: &mut Metadata) {
    remove(metadata);
    let p = passport.clone();
    let values: [(&str, Value); 15] = [
        ("tool_version", p.tool_version.into()),
        ("date", p.date.into()),
        ("tensors_sha256", p.tensors_sha256.into()),
        ("settings_sha256", p.settings_sha256.into()),
        ("speculator", p.speculator.into()),
        ("drafts", p.drafts.into()),
        ("drafts_sha256", p.drafts_sha256.into()),
        ("n_draft", p.n_draft.into()),
        ("exact", p.exact.into()),
        ("n_prompts", p.n_prompts.into()),
        ("prompts_sha256", p.prompts_sha256.into()),
        ("acceptance", p.acceptance.into()),
        ("pass_cost", p.pass_cost.into()),
        ("backend", p.backend.into()),
        ("cpu", p.cpu.into()),
    ];
    for (name, value) in values {
        metadata.set(format!("{PREFIX}{name}"), value);
    }
    if let Some(speedup) = p.speedup {
        metadata.set(SPEEDUP, speedup);
    }
    let hash = keys_sha256(metadata);
    metadata.set(KEYS_SHA256, hash);
}

/// Reads the passport of a file; `Ok(None)` if it has none.
///
/// # Errors
/// A key is missing or of another type.
pub fn read(metadata: &Metadata) -> Result<Option<Passport>, KeyError> {
    if !is_present(metadata) {
        return Ok(None);
    }
    let key = |name: &str| format!("{PREFIX}{name}");
    let missing = |name: &str| KeyError::Missing { key: key(name) };
    let text = |name: &str| metadata.need_str(&key(name)).map(str::to_owned);
    let texts = |name: &str| -> Result<Vec<String>, KeyError> {
        let texts = metadata.strings(&key(name))?;
        let texts = texts.ok_or_else(|| missing(name))?.iter();
        Ok(texts.map(|text| text.to_string()).collect())
    };
    let numbers = |name: &str| -> Result<Vec<f32>, KeyError> {
        let numbers = metadata.f32s(&key(name))?;
        Ok(numbers.ok_or_else(|| missing(name))?.to_vec())
    };
    Ok(Some(Passport {
        tool_version: text("tool_version")?,
        date: text("date")?,
        tensors_sha256: text("tensors_sha256")?,
        settings_sha256: text("settings_sha256")?,
        speculator: text("speculator")?,
        drafts: texts("drafts")?,
        drafts_sha256: texts("drafts_sha256")?,
        n_draft: metadata.need_u32(&key("n_draft"))?,
        exact: metadata
            .bool(&key("exact"))?
            .ok_or_else(|| missing("exact"))?,
        n_prompts: metadata.need_u32(&key("n_prompts"))?,
        prompts_sha256: text("prompts_sha256")?,
        acceptance: numbers("acceptance")?,
        pass_cost: numbers("pass_cost")?,
        speedup: metadata.f32(SPEEDUP)?,
        backend: text("backend")?,
        cpu: text("cpu")?,
    }))
}

/// Removes the passport of a file; returns whether it had one.
pub fn remove(metadata: &mut Metadata) -> bool {
    let keys = metadata.iter().map(|(key, _)| key);
    let keys: Vec<String> = keys
        .filter(|key| key.starts_with(PREFIX))
        .map(str::to_owned)
        .collect();
    for key in &keys {
        metadata.remove(key);
    }
    !keys.is_empty()
}

/// Checks whether a file has a key of a passport.
pub fn is_present(metadata: &Metadata) -> bool {
    metadata.iter().any(|(key, _)| key.starts_with(PREFIX))
}

/// Checks whether the keys of a passport are as written.
pub fn is_unedited(metadata: &Metadata) -> bool {
    let stated = metadata.str(KEYS_SHA256).ok().flatten();
    stated.is_some_and(|stated| stated == keys_sha256(metadata))
}

/// Hashes the keys of a passport.
fn keys_sha256(metadata: &Metadata) -> String {
    hash_of_keys(metadata, |key| {
        key.starts_with(PREFIX) && key != KEYS_SHA256
    })
}

/// Hashes keys: SHA-256 over a line `KEY TYPE VALUE` for each key, in the order of their names.
fn hash_of_keys(metadata: &Metadata, is_hashed: impl Fn(&str) -> bool) -> String {
    let keys = metadata.iter();
    let mut keys: Vec<(&str, &Value)> = keys.filter(|(key, _)| is_hashed(key)).collect();
    keys.sort_by_key(|(key, _)| *key);
    let mut state = Sha256::new();
    for (key, value) in keys {
        state.update(format!("{key} {}", value.value_type()));
        match value {
            Value::Array(array) => items(array).for_each(|item| state.update(format!(" {item}"))),
            value => state.update(format!(" {value}")),
        }
        state.update("\n");
    }
    hex(state)
}

fn items(array: &Array) -> impl Iterator<Item = Value> + '_ {
    (0..array.len()).filter_map(|i| array.get(i))
}

fn hex(state: Sha256) -> String {
    let digest = state.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passport() -> Passport {
        let text = |text: &str| text.to_owned();
        Passport {
            tool_version: text("1.0"),
            date: text("2026-01-01T00:00:00Z"),
            tensors_sha256: text("ab"),
            settings_sha256: text("12"),
            speculator: text("draft-mtp"),
            drafts: vec![text("mtp.gguf")],
            drafts_sha256: vec![text("cd")],
            n_draft: 3,
            exact: true,
            n_prompts: 10,
            prompts_sha256: text("ef"),
            acceptance: (0..20).map(|i| 1.0 / (i + 1) as f32).collect(),
            pass_cost: vec![1.0, 1.1],
            speedup: Some(1.5),
            backend: text("cpu, avx2"),
            cpu: text("a CPU"),
        }
    }

    #[test]
    fn a_passport_is_read_as_written() {
        let mut metadata = Metadata::new();
        metadata.set("general.name", "tiny");
        assert_eq!(read(&metadata), Ok(None));
        let mut expected = passport();
        write(&expected, &mut metadata);
        assert_eq!(read(&metadata), Ok(Some(expected.clone())));
        assert!(is_unedited(&metadata));
        expected.speedup = None;
        write(&expected, &mut metadata);
        assert_eq!(read(&metadata), Ok(Some(expected)));
        assert!(is_unedited(&metadata), "replaced, not added to");
        assert!(remove(&mut metadata));
        assert_eq!(metadata.len(), 1);
        assert!(!remove(&mut metadata));
    }

    #[test]
    fn settings_are_the_keys_that_change_results() {
        let mut metadata = Metadata::new();
        metadata.set(ARCHITECTURE, "llama");
        metadata.set("llama.rope.freq_base", 1e4f32);
        metadata.set("tokenizer.ggml.bos_token_id", 1u32);
        let before = settings_sha256(&metadata);
        for (key, value) in [
            ("general.name", Value::from("other")),
            ("tokenizer.chat_template", "{{ messages }}".into()),
            ("llama4.rope.freq_base", 1f32.into()),
            ("specconv.verify.date", "today".into()),
        ] {
            metadata.set(key, value);
            assert_eq!(settings_sha256(&metadata), before, "{key}");
        }
        for (key, value) in [
            ("llama.rope.freq_base", Value::from(2e4f32)),
            ("tokenizer.ggml.bos_token_id", 2u32.into()),
            (ARCHITECTURE, "qwen2".into()),
        ] {
            let mut changed = metadata.clone();
            changed.set(key, value);
            assert_ne!(settings_sha256(&changed), before, "{key}");
        }
    }

    #[test]
    fn every_edited_key_is_found() {
        let mut metadata = Metadata::new();
        write(&passport(), &mut metadata);
        let keys: Vec<String> = metadata.iter().map(|(key, _)| key.to_owned()).collect();
        for key in &keys {
            let mut edited = metadata.clone();
            edited.remove(key);
            assert!(!is_unedited(&edited), "{key} removed");
            edited.set(key, "other");
            assert!(!is_unedited(&edited), "{key} changed");
        }
        let mut edited = metadata.clone();
        let mut acceptance = passport().acceptance;
        acceptance[19] = 0.5;
        edited.set(format!("{PREFIX}acceptance"), acceptance);
        assert!(!is_unedited(&edited), "a late item of an array");
        edited = metadata;
        edited.set(format!("{PREFIX}more"), true);
        assert!(!is_unedited(&edited), "a key added");
    }
}
