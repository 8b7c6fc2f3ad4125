//! Groups of tensors that get one type: the tensors of one role in a band of layers.

use std::collections::HashMap;

use anyhow::Context as _;
use quantize::{Decision, FType, Imatrix, QuantizeConfig, TypeRule, decide};
use schemas::gguf::{DType, Plan};

/// Tensors that get one type.
#[derive(Debug)]
pub(super) struct Group {
    /// Name such as `blk.0-7.ffn_down`.
    pub(super) name: String,
    /// Names of the tensors, in file order.
    pub(super) tensors: Vec<String>,
    /// The types that fit, with the bytes of the tensors, the smallest first.
    pub(super) options: Vec<Choice>,
}

/// A type of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) dtype: DType,
    pub(super) size_bytes: u64,
}

/// Returns the configuration that quantizes some tensors. Tensors without a rule get Q8_0, so a result is used
/// only for tensors with a rule.
pub(super) fn config(
    rules: &[(&str, DType)],
    imatrix: Option<&Imatrix>,
) -> anyhow::Result<QuantizeConfig> {
    let parsed = rules
        .iter()
        .map(|(name, dtype)| rule(name, *dtype).parse::<TypeRule>());
    let mut config = QuantizeConfig::new(FType::Q8_0);
    config.imatrix = imatrix.cloned();
    config.tensor_types = parsed.collect::<Result<_, _>>().context("tensor name")?;
    Ok(config)
}

/// Returns a rule of `--tensor-type` that matches one tensor.
pub(super) fn rule(name: &str, dtype: DType) -> String {
    format!("^{}$={dtype}", name.replace('.', r"\."))
}

/// Groups the tensors that a quantizer changes, in file order. `n_bands` is the number of bands of layers.
pub(super) fn groups(
    plan: &Plan,
    types: &[DType],
    imatrix: Option<&Imatrix>,
    n_bands: u32,
) -> anyhow::Result<Vec<Group>> {
    let is_quantized = |d: &Decision| d.from != d.to;
    let decisions = decide(plan, &config(&[], imatrix)?)?;
    let n_layers = decisions.iter().filter(|d| !d.is_mtp);
    let n_layers = n_layers
        .filter_map(|d| split(&d.tensor).0)
        .max()
        .map_or(1, |last| last + 1);
    let n_per_band = n_layers.div_ceil(n_bands).max(1);
    let mut groups: Vec<Group> = Vec::new();
    let mut positions: HashMap<String, usize> = HashMap::new();
    for decision in decisions.iter().filter(|d| is_quantized(d)) {
        let name = group_name(decision, n_per_band, n_layers);
        let i = *positions.entry(name.clone()).or_insert_with(|| {
            groups.push(Group {
                name,
                tensors: Vec::new(),
                options: Vec::new(),
            });
            groups.len() - 1
        });
        groups[i].tensors.push(decision.tensor.clone());
    }
    for group in &mut groups {
        for &requested in types {
            let names = group.tensors.iter();
            let rules: Vec<(&str, DType)> = names.map(|name| (name.as_str(), requested)).collect();
            let decisions = match decide(plan, &config(&rules, imatrix)?) {
                // Its blocks do not fit the rows, and no other type replaces it.
                Err(quantize::Error::Unfit { .. }) => continue,
                decisions => decisions?,
            };
            let is_own = |d: &&Decision| group.tensors.contains(&d.tensor);
            let own: Vec<&Decision> = decisions.iter().filter(is_own).collect();
            // Another type than requested, if the rows are not a multiple of its block length.
            let Some(dtype) = own.first().map(|d| d.to) else {
                continue;
            };
            let fits = own.iter().all(|d| {
                let has_entry = imatrix.is_some_and(|matrix| matrix.entry(&d.tensor).is_some());
                d.to == dtype && d.to != d.from && (has_entry || !d.needs_imatrix)
            });
            let is_new = group.options.iter().all(|choice| choice.dtype != dtype);
            if fits && is_new {
                group.options.push(Choice {
                    dtype,
                    size_bytes: own.iter().map(|d| d.to_bytes).sum(),
                });
            }
        }
    }
    groups.retain(|group| !group.options.is_empty());
    for group in &mut groups {
        group.options.sort_by_key(|choice| choice.size_bytes);
    }
    Ok(groups)
}

/// Splits a tensor's name into layer and role.
fn split(name: &str) -> (Option<u32>, &str) {
    let role = name.strip_suffix(".weight").unwrap_or(name);
    let layer = role
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    match layer.and_then(|(layer, role)| Some((layer.parse().ok()?, role))) {
        Some((layer, role)) => (Some(layer), role),
        None => (None, role),
    }
}

fn group_name(decision: &Decision, n_per_band: u32, n_layers: u32) -> String {
    match split(&decision.tensor) {
        (None, role) => role.to_owned(),
        (Some(layer), role) if decision.is_mtp => format!("blk.{layer}.{role}"),
        (Some(layer), role) => {
            let first = layer / n_per_band * n_per_band;
            let last = (first + n_per_band).min(n_layers) - 1;
            match first == last {
                true => format!("blk.{first}.{role}"),
                false => format!("blk.{first}-{last}.{role}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_layer_and_role() {
        assert_eq!(split("blk.12.ffn_down.weight"), (Some(12), "ffn_down"));
        assert_eq!(split("output.weight"), (None, "output"));
        assert_eq!(split("blk.x.weight"), (None, "blk.x"));
        let rule = rule("blk.1.ffn_down.weight", DType::Q4_K);
        assert_eq!(rule, r"^blk\.1\.ffn_down\.weight$=Q4_K");
    }
}
