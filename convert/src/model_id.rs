//! Parses model ids: `org/Name-7B-Instruct-v0.2` contains a base name, a size, a finetune and a version, by
//! the naming convention of GGUF files.

use std::collections::BTreeSet;

/// The parts of a model's id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelId {
    /// The id without the organization.
    pub(crate) name: String,
    pub(crate) organization: Option<String>,
    pub(crate) basename: Option<String>,
    pub(crate) finetune: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) size_label: Option<String>,
}

/// The role of a dash-separated part of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Basename,
    Version,
    Encoding,
    Size,
    Finetune,
}

struct IdPart {
    text: String,
    labels: BTreeSet<Label>,
}

impl ModelId {
    /// Parses an id. `n_params` distinguishes sizes from other numbers with a letter, such as context
    /// lengths.
    pub(crate) fn parse(id: &str, n_params: u64) -> ModelId {
        if id.contains(' ') {
            return ModelId {
                name: id.to_owned(),
                ..ModelId::default()
            };
        }
        let (organization, name) = match id.split_once('/') {
            // "./name" and "../name" are paths.
            Some((org, name)) => (Some(org).filter(|org| !org.starts_with('.')), name),
            None => (None, id),
        };
        let mut parts: Vec<IdPart> = name
            .split('-')
            .filter(|text| !text.is_empty())
            .enumerate()
            .map(|(i, text)| label(text, i == 0, n_params))
            .collect();
        drop_word_sizes(&mut parts);
        find_basename(&mut parts);

        let joined = |wanted: fn(&BTreeSet<Label>) -> bool| {
            let texts: Vec<_> = parts
                .iter()
                .filter(|part| wanted(&part.labels))
                .map(|part| part.text.as_str())
                .collect();
            (!texts.is_empty()).then(|| texts.join("-"))
        };
        let finetune = joined(|labels| labels.contains(&Label::Finetune));
        let version =
            joined(|labels| labels.contains(&Label::Version) && !labels.contains(&Label::Basename));
        let mut sizes: Vec<&str> = Vec::new();
        for part in &parts {
            if part.labels.contains(&Label::Size) && !sizes.contains(&part.text.as_str()) {
                sizes.push(&part.text);
            }
        }
        let size_label = (!sizes.is_empty()).then(|| sizes.join("-"));
        // A name without other parts is not a base name.
        let telling = size_label.is_some() || finetune.is_some() || version.is_some();
        ModelId {
            name: name.to_owned(),
            organization: organization.map(str::to_owned),
            basename: joined(|labels| labels.contains(&Label::Basename)).filter(|_| telling),
            finetune,
            version,
            size_label,
        }
    }
}

/// Labels a single part.
fn label(text: &str, first: bool, n_params: u64) -> IdPart {
    let lower = text.to_lowercase();
    let part = |text: String, label| IdPart {
        text,
        labels: BTreeSet::from_iter(label),
    };
    if is_version(&lower) {
        part(text.to_owned(), Some(Label::Version))
    } else if is_encoding(&lower) {
        part(text.to_uppercase(), Some(Label::Encoding))
    } else if !first && is_size(&lower) {
        let (text, label) = normalize_size(text, n_params);
        part(text, Some(label))
    } else if !first && ["chat", "instruct", "vision", "lora"].contains(&lower.as_str()) {
        part(text.to_owned(), Some(Label::Finetune))
    } else {
        part(text.to_owned(), None)
    }
}

/// Strips leading digits, at least one, and returns the rest.
fn digits(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
}

/// Matches `v0.2`, `iter3`, `2507`.
fn is_version(text: &str) -> bool {
    let number = text.strip_prefix("iter").or(text.strip_prefix('v'));
    is_dotted_number(number.unwrap_or(text))
}

/// Matches `3`, `0.2`.
fn is_dotted_number(text: &str) -> bool {
    text.split('.')
        .all(|number| digits(number).is_some_and(str::is_empty))
}

/// Matches `q4_k_m`, `iq2_xs`, `f16`, `bf16`, `fp32`.
fn is_encoding(text: &str) -> bool {
    let quant = text.strip_prefix('i').unwrap_or(text).strip_prefix('q');
    if let Some(rest) = quant {
        let mut chars = rest.chars();
        let steps: Vec<char> = chars.by_ref().skip(1).collect();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        return rest.starts_with(|c: char| c.is_ascii_digit())
            && steps.len().is_multiple_of(2)
            && steps
                .chunks(2)
                .all(|step| step[0] == '_' && is_word(step[1]));
    }
    let float = text.strip_prefix('b').unwrap_or(text).strip_prefix('f');
    let bits = float.map(|rest| rest.strip_prefix('p').unwrap_or(rest));
    matches!(bits, Some("16" | "32"))
}

/// Matches `7b`, `0.5b`, `8x7b`, `a3b`, `7b1` for 7.1, or a size word.
fn is_size(text: &str) -> bool {
    if ["small", "mini", "medium", "large", "xl", "xxl"].contains(&text) {
        return true;
    }
    let after_experts = digits(text).and_then(|rest| rest.strip_prefix('x'));
    let number = text.strip_prefix('a').or(after_experts).unwrap_or(text);
    let Some(mut rest) = digits(number) else {
        return false;
    };
    if let Some(fraction) = rest.strip_prefix(['.', '_']) {
        let Some(after) = digits(fraction) else {
            return false;
        };
        rest = after;
    }
    let mut tail = rest.chars();
    let unit = tail.next().is_some_and(|c| "kmbt".contains(c));
    let digit = tail.next();
    unit && digit.is_none_or(|c| c.is_ascii_digit()) && tail.next().is_none()
}

/// Normalises a size and labels it as this model's or not: a size that is off by more than 7/8 of the
/// parameters is something else, most likely a context length.
fn normalize_size(text: &str, n_params: u64) -> (String, Label) {
    let mut chars: Vec<char> = text.replace('_', ".").chars().collect();
    if let [.., unit, digit] = chars[..]
        && digit.is_ascii_digit()
    {
        chars.truncate(chars.len() - 2);
        chars.extend(['.', digit, unit]);
    }
    if let [.., digit, unit] = &mut chars[..]
        && digit.is_ascii_digit()
    {
        *unit = unit.to_ascii_uppercase();
    }
    let unit = chars.pop().expect("a size has a unit or is a word");
    let number: String = chars.iter().collect();
    let power = " KMBT".find(unit).and_then(|i| i32::try_from(i).ok());
    let size = number.parse::<f64>().ok().filter(|_| n_params > 0);
    let other = size.is_some_and(|size| {
        let size = size * 1000f64.powi(power.unwrap_or(-1));
        let n_params = n_params as u128;
        (size - n_params as f64).abs() > (7 * n_params / 8) as f64
    });
    match other {
        true => (format!("{number}{}", unit.to_lowercase()), Label::Finetune),
        false => (format!("{number}{unit}"), Label::Size),
    }
}

/// If there is a numeric size, `mini` and similar words are part of a name.
fn drop_word_sizes(parts: &mut [IdPart]) {
    let is_size = |part: &IdPart| part.labels.contains(&Label::Size);
    let numeric = |part: &IdPart| part.text.contains(|c: char| c.is_ascii_digit());
    if !parts.iter().any(|part| is_size(part) && numeric(part)) {
        return;
    }
    for part in parts {
        if part.text.chars().all(char::is_alphabetic) {
            part.labels.remove(&Label::Size);
        }
    }
}

/// Labels the leading parts as the base name, without versions at its end; unlabelled parts after it are
/// finetunes.
fn find_basename(parts: &mut [IdPart]) {
    let mut at_start = true;
    for part in parts.iter_mut() {
        let plain = part.labels.is_empty();
        let alphabetic = part.text.starts_with(char::is_alphabetic);
        at_start &= (plain && alphabetic) || part.labels.contains(&Label::Version);
        if at_start {
            part.labels.insert(Label::Basename);
        } else if plain {
            part.labels.insert(Label::Finetune);
        }
    }
    for part in parts.iter_mut().rev() {
        if part.labels.len() < 2 || !part.labels.remove(&Label::Basename) {
            break;
        }
    }
}

/// Formats an id as a title: dashes become spaces, lower-case words are capitalised unless they are
/// versions or begin with a digit.
pub(crate) fn title(id: &str) -> String {
    id.replace('-', " ")
        .split_whitespace()
        .map(|word| {
            let number = word.starts_with(|c: char| c.is_ascii_digit());
            let version = word.strip_prefix('v').is_some_and(is_dotted_number);
            match is_lower(word) && !number && !version {
                true => capitalize(word),
                false => word.to_owned(),
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

fn is_lower(word: &str) -> bool {
    word.contains(char::is_lowercase) && !word.contains(char::is_uppercase)
}

/// Capitalises every letter that does not follow another letter.
fn capitalize(word: &str) -> String {
    let mut after_letter = false;
    let mut out = String::with_capacity(word.len());
    for c in word.chars() {
        match after_letter {
            true => out.push(c),
            false => out.extend(c.to_uppercase()),
        }
        after_letter = c.is_lowercase() || c.is_uppercase();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats as `name | organization | basename | finetune | version | size`; absent parts are empty.
    fn parts(id: &str, n_params: u64) -> String {
        let id = ModelId::parse(id, n_params);
        let fields = [
            Some(id.name),
            id.organization,
            id.basename,
            id.finetune,
            id.version,
            id.size_label,
        ];
        fields.map(Option::unwrap_or_default).join("|")
    }

    /// Expected values are those of `Metadata.get_model_id_components` in llama.cpp's gguf-py.
    #[test]
    fn ids_are_parsed_as_in_llama_cpp() {
        for (id, n_params, expected) in [
            (
                "Qwen3-4B-Instruct-2507",
                4022468096,
                "Qwen3-4B-Instruct-2507||Qwen3|Instruct|2507|4B",
            ),
            (
                "Qwen3.6-35B-A3B",
                35000000000,
                "Qwen3.6-35B-A3B||Qwen3.6|||35B-A3B",
            ),
            (
                "google/gemma-3-4b-it",
                4300079472,
                "gemma-3-4b-it|google|gemma-3|it||4B",
            ),
            ("GLM-4.5-Air", 0, "GLM-4.5-Air|||||"),
            (
                "DeepSeek-V3-0324",
                671000000000,
                "DeepSeek-V3-0324||DeepSeek||V3-0324|",
            ),
            (
                "mistralai/Mixtral-8x7B-Instruct-v0.1",
                46702792704,
                "Mixtral-8x7B-Instruct-v0.1|mistralai|Mixtral|Instruct|v0.1|8x7B",
            ),
            ("bloom-7b1", 7069016064, "bloom-7b1||bloom|||7.1B"),
            (
                "meta-llama/Llama-2-7b-chat-hf",
                6738415616,
                "Llama-2-7b-chat-hf|meta-llama|Llama-2|chat-hf||7B",
            ),
            (
                "Phi-3-mini-4k-instruct",
                3821079552,
                "Phi-3-mini-4k-instruct||Phi-3|4k-instruct||mini",
            ),
            ("./model", 0, "model|||||"),
            ("My Model 7B", 7000000000, "My Model 7B|||||"),
            (
                "TinyLlama-1.1B-intermediate-step-1431k-3T",
                1100048384,
                "TinyLlama-1.1B-intermediate-step-1431k-3T||TinyLlama|intermediate-step-1431k-3t||1.1B",
            ),
            (
                "smol_llama-101M-GQA",
                101000000,
                "smol_llama-101M-GQA||smol_llama|GQA||101M",
            ),
            (
                "org/Name-0_5b-F16-iq2_x_s-lora",
                500000000,
                "Name-0_5b-F16-iq2_x_s-lora|org|Name|lora||0.5B",
            ),
            ("7B-first", 7000000000, "7B-first|||7B-first||"),
            (
                "v2-small-xl-9000",
                1000000,
                "v2-small-xl-9000||v2||9000|small-xl",
            ),
            ("a--b-7Bx-", 0, "a--b-7Bx-||a-b|7Bx||"),
            (
                "iter12-IQ3_M-large-300K",
                300000,
                "iter12-IQ3_M-large-300K||iter12|large||300K",
            ),
            (
                "Model-A14B-128k",
                14000000000,
                "Model-A14B-128k||Model|128k||A14B",
            ),
            ("--", 5, "--|||||"),
        ] {
            assert_eq!(parts(id, n_params), expected, "{id}");
        }
    }

    #[test]
    fn titles_capitalise_words() {
        for (id, expected) in [
            ("tiny-llama", "Tiny Llama"),
            ("Qwen3-4B-it", "Qwen3 4B It"),
            ("v0.2-model", "v0.2 Model"),
            ("o1mini-4b", "O1Mini 4b"),
            ("qwen3.5b-x", "Qwen3.5B X"),
            ("  a--b ", "A B"),
            ("DeepSeek-v3-r1", "DeepSeek v3 R1"),
        ] {
            assert_eq!(title(id), expected);
        }
    }
}
