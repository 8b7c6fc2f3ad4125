//! Recipes: the options of the command as a TOML file, which can be reviewed and kept.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, anyhow};
use quantize::nearest;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemas::input;
use toml::de::{DeTable, DeValue};

use super::options::{self, Options};

/// Reads a recipe; errors state line and column.
pub(super) fn read(path: &Path) -> anyhow::Result<Options> {
    let text = input::read_text(path, input::Kind::Stream, input::MAX_HANDWRITTEN);
    let text = text.with_context(|| path.display().to_string())?;
    parse(&text).map_err(|error| {
        let (line, column) = input::line_and_column(&text, error.span.start);
        anyhow!("{}:{line}:{column}: {}", path.display(), error.reason)
    })
}

/// An error in a recipe, and its location.
struct RecipeError {
    /// Byte range in the text.
    span: Range<usize>,
    reason: String,
}

impl From<toml::de::Error> for RecipeError {
    fn from(error: toml::de::Error) -> RecipeError {
        RecipeError {
            span: error.span().unwrap_or_default(),
            reason: error.message().replace('\n', ", "),
        }
    }
}

fn parse(text: &str) -> Result<Options, RecipeError> {
    let table = DeTable::parse(text)?;
    let known = keys();
    for (key, value) in table.get_ref() {
        if !known.iter().any(|name| name == key.get_ref()) {
            let near = nearest(key.get_ref(), known.iter().map(String::as_str));
            let near = near.map_or_else(String::new, |near| format!(" (did you mean {near}?)"));
            return Err(RecipeError {
                span: key.span(),
                reason: format!(
                    "key {}{near}: expected one of {}",
                    key.get_ref(),
                    known.join(", ")
                ),
            });
        }
        let check = |value: &toml::Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(text) => {
                options::check(key.get_ref(), text).map_err(|error| RecipeError {
                    span: value.span(),
                    reason: format!("{}: {error:#}", key.get_ref()),
                })
            }
            _ => Ok(()),
        };
        match value.get_ref() {
            DeValue::Array(items) => items.iter().try_for_each(check)?,
            _ => check(value)?,
        }
    }
    Ok(toml::from_str(text)?)
}

/// Returns the keys that a recipe may have.
fn keys() -> Vec<String> {
    let schema = schema();
    let properties = schema.get("properties").and_then(|p| p.as_object());
    properties.map_or_else(Vec::new, |p| p.keys().cloned().collect())
}

/// Returns the JSON schema of a recipe.
pub(super) fn schema() -> Schema {
    SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<Options>()
}

/// Formats options as a recipe.
pub(super) fn to_text(options: &Options) -> anyhow::Result<String> {
    toml::to_string(options)
        .context("a path in the options is not UTF-8, so they cannot be a recipe")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn error(text: &str) -> String {
        let error = parse(text).map(|_| ()).unwrap_err();
        let (line, column) = input::line_and_column(text, error.span.start);
        format!("{line}:{column}: {}", error.reason)
    }

    #[test]
    fn errors_state_line_and_column() {
        for (text, expected) in [
            (
                "type = \"Q4_K_M\"\nmtp-typ = \"Q8_0\"",
                "2:1: key mtp-typ (did you mean mtp-type?): expected one of ",
            ),
            (
                "type = \"Q8_0, Q4_KM\"",
                "1:8: type: file type \"Q4_KM\" is unknown (did you mean Q4_K_M?)",
            ),
            (
                "# rules\ntensor-type = [\n  \"attn_v=q8_0\",\n  \"ffn(=q8_0\",\n]",
                "4:3: tensor-type: \"ffn(=q8_0\": pattern \"ffn(\", byte ",
            ),
            (
                "output-tensor-type = \"q8\"",
                "1:22: output-tensor-type: element type \"q8\" (did you mean Q8_0?): expected",
            ),
            (
                "pure = 1",
                "1:8: invalid type: integer `1`, expected a boolean",
            ),
            ("prune-layers = [3, -7]", "1:20: "),
            ("pure = true\npure = false", "2:1: duplicate key"),
            ("in = ", "1:6: "),
            (
                "type = \"Q8_0,q8_0\"",
                "1:8: type: file type Q8_0 is named twice",
            ),
        ] {
            let found = error(text);
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }

    #[test]
    fn the_checked_in_schema_matches_the_struct() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../schemas/json/recipe/quantize.schema.json");
        let mut expected = serde_json::to_string_pretty(&schema()).unwrap();
        expected.push('\n');
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &expected).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "UPDATE_GOLDEN=1 rewrites {}",
            path.display()
        );
    }

    #[test]
    fn options_survive_a_round_trip() {
        let text = "in = \"m.gguf\"\ntype = \"Q4_K_M,Q6_K\"\npure = false\n\
                    tensor-type = [\"attn_v=q8_0\"]\nprune-layers = [3, 7]\n";
        let Ok(options) = parse(text) else {
            panic!("the text is a recipe");
        };
        assert_eq!(to_text(&options).unwrap(), text);
    }
}
