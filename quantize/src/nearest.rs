//! Suggestions for misspelled names.

/// Minimum Jaro-Winkler similarity: 1 is equal, and two wrong letters of six are 0.82.
const MIN_LIKENESS: f64 = 0.8;

/// Returns the most similar name, case-insensitively; `None` if no name is similar enough.
pub fn nearest<'a>(found: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let found = found.to_lowercase();
    let likeness = |name: &str| strsim::jaro_winkler(&found, &name.to_lowercase());
    let names = names.into_iter().map(|name| (likeness(name), name));
    let best = names.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    (best.0 >= MIN_LIKENESS).then_some(best.1)
}

/// Returns ` (did you mean X?)` for an error about a name, or an empty string.
pub(crate) fn suggest<'a>(found: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let nearest = nearest(found, names);
    nearest.map_or_else(String::new, |name| format!(" (did you mean {name}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_seen_and_other_words_are_not() {
        let names = ["Q4_K_M", "Q4_K_S", "Q8_0", "IQ4_NL"];
        for (found, expected) in [
            ("q4_km", Some("Q4_K_M")),
            ("Q4-K-S", Some("Q4_K_S")),
            ("q80", Some("Q8_0")),
            ("IQ4NL", Some("IQ4_NL")),
            ("q8", Some("Q8_0")),
            ("Q9", None),
            ("out.gguf", None),
            ("", None),
        ] {
            assert_eq!(nearest(found, names), expected, "{found}");
        }
    }
}
