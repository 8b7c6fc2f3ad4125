//! The YAML front matter of a card. Keys of an existing card are kept as they were written; values are only
//! added, never parsed, so no YAML that a user wrote is changed.

use anyhow::ensure;
use schemas::report::CardFile;

use super::evidence::Evidence;
use super::folder::Folder;

/// Keys that this program writes, in their order. Others follow them.
const KEYS: [&str; 5] = [
    "license",
    "language",
    "base_model",
    "base_model_relation",
    "tags",
];
const MODEL_INDEX: &str = "model-index";

/// Values from flags.
pub(super) struct Given {
    pub(super) base_model: Option<String>,
    pub(super) license: Option<String>,
    pub(super) language: Vec<String>,
}

/// The keys of a front matter, each with its lines.
pub(super) struct FrontMatter(Vec<(String, String)>);

impl FrontMatter {
    /// Combines flags, the front matter of the existing card, and facts of files and reports, in this order of
    /// precedence.
    pub(super) fn new(
        existing: &[(String, String)],
        given: &Given,
        folder: &Folder,
        evidence: &Evidence,
    ) -> FrontMatter {
        let find = |key: &str| existing.iter().find(|(name, _)| name == key);
        let license = given.license.clone();
        let base = given.base_model.clone();
        let flags = [
            license.map(|id| scalar("license", &id)),
            list("language", &given.language),
            base.map(|name| scalar("base_model", &name)),
            None,
            None,
        ];
        let base = evidence.source.clone().or_else(|| source_of(folder));
        let languages = folder.texts("general.languages");
        let mut tags = vec!["gguf".to_owned()];
        tags.extend(
            folder
                .texts("general.tags")
                .into_iter()
                .filter(|tag| tag != "gguf"),
        );
        let has_base = given.base_model.is_some() || find("base_model").is_some() || base.is_some();
        let facts = [
            folder
                .text("general.license")
                .map(|id| scalar("license", &id)),
            list("language", &languages),
            base.map(|name| scalar("base_model", &name)),
            has_base.then(|| scalar("base_model_relation", "quantized")),
            list("tags", &tags),
        ];
        let mut keys = Vec::new();
        for ((key, flag), fact) in KEYS.into_iter().zip(flags).zip(facts) {
            let kept = || find(key).map(|(_, lines)| lines.clone());
            let lines = flag.or_else(kept).or(fact);
            keys.extend(lines.map(|lines| (key.to_owned(), lines)));
        }
        let is_other = |key: &str| !KEYS.contains(&key) && key != MODEL_INDEX;
        keys.extend(existing.iter().filter(|(key, _)| is_other(key)).cloned());
        let index = model_index(folder, evidence);
        keys.extend(index.map(|lines| (MODEL_INDEX.to_owned(), lines)));
        FrontMatter(keys)
    }

    pub(super) fn text(&self) -> String {
        self.0.iter().map(|(_, lines)| lines.as_str()).collect()
    }

    pub(super) fn keys(&self) -> Vec<String> {
        let names = self.0.iter().map(|(name, _)| name.clone());
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Names keys that the Hub uses and the card lacks.
    pub(super) fn notes(&self) -> Vec<String> {
        let keys = self.keys();
        let flags = [("license", "--license"), ("base_model", "--base-model")];
        let missing = flags
            .iter()
            .filter(|(key, _)| !keys.iter().any(|k| k == key));
        missing
            .map(|(key, flag)| format!("the card has no {key}: no file states it, give {flag}"))
            .collect()
    }
}

/// Splits a card into the keys of its front matter, with their lines, and the body. Comments belong to the
/// key before them.
pub(super) fn split(card: &str) -> anyhow::Result<(Vec<(String, String)>, &str)> {
    let Some(rest) = card.strip_prefix("---\n") else {
        return Ok((Vec::new(), card));
    };
    let mut keys: Vec<(String, String)> = Vec::new();
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        at += line.len();
        if line.trim_end() == "---" {
            return Ok((keys, &rest[at..]));
        }
        let first = line.chars().next().unwrap_or(' ');
        // List items may be written without indentation.
        let continues = first.is_whitespace() || ['-', '#', '}', ']'].contains(&first);
        match (continues, keys.last_mut()) {
            (true, Some((_, lines))) => lines.push_str(line),
            (true, None) => keys.push((String::new(), line.to_owned())),
            (false, _) => {
                let key = line.split(':').next().unwrap_or_default();
                let key = key.trim().trim_matches(['"', '\'']);
                ensure!(
                    keys.iter().all(|(known, _)| known != key),
                    "front matter: key {key} is given twice"
                );
                keys.push((key.to_owned(), line.to_owned()));
            }
        }
    }
    anyhow::bail!("front matter: no closing line \"---\"")
}

/// Returns the repository that the files state as their source.
fn source_of(folder: &Folder) -> Option<String> {
    let url = folder
        .text("general.source.repo_url")
        .or_else(|| folder.text("general.repo_url"))?;
    let path = url.strip_prefix("https://huggingface.co/")?;
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    (parts.len() == 2).then(|| parts.join("/"))
}

/// Quotes a text; JSON strings are YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Quotes a text unless it is a word.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./+".contains(c);
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic());
    // YAML reads some words as booleans or null: "no" is a language.
    let lower = text.to_ascii_lowercase();
    let is_special =
        ["y", "n", "yes", "no", "on", "off", "true", "false", "null"].contains(&lower.as_str());
    match starts_well && text.chars().all(is_plain) && !is_special {
        true => text.to_owned(),
        false => quoted(text),
    }
}

fn scalar(key: &str, value: &str) -> String {
    format!("{key}: {}\n", word(value))
}

/// Writes a list; `None` if it is empty.
fn list(key: &str, items: &[String]) -> Option<String> {
    let lines: String = items
        .iter()
        .map(|item| format!("- {}\n", word(item)))
        .collect();
    (!items.is_empty()).then(|| format!("{key}:\n{lines}"))
}

/// Writes the measured numbers as evaluation results of the Hub; `None` if nothing was measured.
fn model_index(folder: &Folder, evidence: &Evidence) -> Option<String> {
    let mut results = String::new();
    let files = || folder.models.iter().map(|model| &model.card);
    for measured in &evidence.divergences {
        let own = files().filter(|file| measured.files.contains(&file.name));
        let metrics = own.flat_map(|file| {
            let values = [
                (
                    "kl_divergence",
                    "Mean KL divergence",
                    file.kld.map(|e| e.value),
                ),
                (
                    "same_top_token",
                    "Same top token",
                    file.same_top.map(|e| e.value),
                ),
                (
                    "perplexity_ratio",
                    "Perplexity ratio",
                    file.perplexity_ratio.map(|e| e.value),
                ),
            ];
            values.map(|(kind, name, value)| Some(metric(kind, name, file, value?)))
        });
        let name = measured.text.as_deref().unwrap_or("text");
        results += &result(name, "text", metrics.flatten());
    }
    let accepted = files().filter_map(|file| {
        let acceptance = file.draft.as_ref()?.acceptance?;
        Some(metric(
            "acceptance_rate",
            "Draft acceptance",
            file,
            acceptance,
        ))
    });
    let accepted: Vec<String> = accepted.collect();
    if !accepted.is_empty() {
        results += &result("prompts of specrun verify", "prompts", accepted.into_iter());
    }
    let title = quoted(&folder.title());
    (!results.is_empty()).then(|| format!("{MODEL_INDEX}:\n- name: {title}\n  results:\n{results}"))
}

fn result(dataset: &str, kind: &str, metrics: impl Iterator<Item = String>) -> String {
    let metrics: String = metrics.collect();
    format!(
        "  - task:\n      type: text-generation\n    dataset:\n      name: {}\n      type: {kind}\n    metrics:\n\
         {metrics}",
        quoted(dataset)
    )
}

fn metric(kind: &str, name: &str, file: &CardFile, value: f64) -> String {
    let name = quoted(&format!("{name} ({})", file.name));
    format!(
        "    - type: {kind}\n      name: {name}\n      value: {}\n",
        number(value)
    )
}

/// Formats a number as a YAML float: with a point, and without an exponent, which YAML reads as text.
fn number(value: f64) -> String {
    // The sum turns -0 into 0.
    let text = (value + 0.0).to_string();
    match text.contains('.') {
        true => text,
        false => text + ".0",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_keys_are_kept_with_their_comments() {
        let card =
            "---\n# mine\nlicense: mit # checked\ntags:\n- a\n  # b\nextra: {x: 1}\n---\nbody\n";
        let (keys, body) = split(card).unwrap();
        let names: Vec<&str> = keys.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["", "license", "tags", "extra"]);
        assert_eq!(keys[2].1, "tags:\n- a\n  # b\n");
        assert_eq!(body, "body\n");
        let whole: String = keys.iter().map(|(_, lines)| lines.as_str()).collect();
        assert_eq!(format!("---\n{whole}---\n{body}"), card);
        assert_eq!(split("no front matter").unwrap().1, "no front matter");
        assert!(split("---\nlicense: mit\n").is_err());
        assert!(split("---\na: 1\na: 2\n---\n").is_err());
    }

    #[test]
    fn numbers_are_yaml_floats() {
        assert_eq!(
            [1e-7, -0.0, 1.0, 0.25].map(number),
            ["0.0000001", "0.0", "1.0", "0.25"]
        );
    }

    #[test]
    fn words_that_yaml_would_misread_are_quoted() {
        assert_eq!(scalar("license", "apache-2.0"), "license: apache-2.0\n");
        let languages = ["en", "no", "a: b", "1e3", ""].map(str::to_owned);
        let expected = "language:\n- en\n- \"no\"\n- \"a: b\"\n- \"1e3\"\n- \"\"\n";
        assert_eq!(list("language", &languages).unwrap(), expected);
    }
}
