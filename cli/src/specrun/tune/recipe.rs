//! The recipe of a tuned mix.

use std::path::Path;

use quantize::FType;
use schemas::gguf::{DType, Plan};
use schemas::report::{TuneChoice, TuneReport};

use super::Args;
use super::groups::{Group, rule};
use crate::specrun::page::decimal;

/// Returns the recipe: options of `specconv quantize`, with the same lines for llama-quantize in comments.
pub(super) fn text(
    args: &Args,
    groups: &[Group],
    report: &TuneReport,
    plan: &Plan,
) -> anyhow::Result<String> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let ftype = file_type(report, plan);
    let mut lines = vec![
        "#:schema ../schemas/json/recipe/quantize.schema.json".to_owned(),
        format!(
            "# {} bits per weight, mean KL divergence {} over {} tokens of {}",
            decimal(report.bits_per_weight, 3),
            decimal(report.mixes[0].kld.value, 6),
            report.n_scored,
            one_line(&args.file.display().to_string())
        ),
        format!("in = {}", quoted(&args.model.display().to_string())),
        format!("out = {}", quoted(&out_name(&args.model))),
        "# Types of tensors without a rule, and the name in general.file_type".to_owned(),
        format!("type = {}", quoted(ftype.name())),
    ];
    if let Some(imatrix) = &args.imatrix {
        lines.push(format!(
            "imatrix = {}",
            quoted(&imatrix.display().to_string())
        ));
    }
    lines.push("tensor-type = [".to_owned());
    let mut flags = Vec::new();
    for (group, choice) in groups.iter().zip(&report.groups) {
        let dtype = choice_type(choice);
        lines.push(format!("    # {}", one_line(&group.name)));
        for name in &group.tensors {
            let rule = rule(name, dtype);
            // A literal string: backslashes are not escapes.
            lines.push(format!("    '{rule}',"));
            flags.push(format!("#   {rule}"));
        }
    }
    lines.push("]".to_owned());
    lines.push(String::new());
    lines.push("# For llama-quantize, these lines in a file of --tensor-type-file:".to_owned());
    lines.extend(flags);
    Ok(lines.join("\n") + "\n")
}

/// Returns the name of the quantized file: `model-tuned.gguf` for `model.gguf`.
fn out_name(model: &Path) -> String {
    let stem = model.file_stem().unwrap_or_default();
    model
        .with_file_name(format!("{}-tuned.gguf", stem.to_string_lossy()))
        .display()
        .to_string()
}

fn choice_type(choice: &TuneChoice) -> DType {
    DType::by_name(&choice.dtype).expect("the name of a type")
}

/// Returns the file type whose default type has the most weights of the mix.
fn file_type(report: &TuneReport, plan: &Plan) -> FType {
    let weights = |dtype: DType| -> u64 {
        let own = report
            .groups
            .iter()
            .filter(|choice| choice_type(choice) == dtype);
        let tensors = own.flat_map(|choice| &choice.tensors);
        tensors
            .filter_map(|name| plan.tensor(name))
            .map(|tensor| tensor.n_elements())
            .sum()
    };
    let types = FType::all().filter(|ftype| ftype.id().is_some());
    // Of file types with the same default type, the first one; Q4_K_S is before Q4_K_M.
    let mut best = (0, FType::Q8_0);
    for ftype in types {
        let n = ftype.default_dtype().map_or(0, weights);
        if n > best.0 {
            best = (n, ftype);
        }
    }
    best.1
}

/// Replaces line breaks: a name must not end a comment.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}
