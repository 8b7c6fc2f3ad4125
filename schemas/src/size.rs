//! [`Size`]: the number of parameters of a file, and the label that states it.

use crate::gguf::{Metadata, Tensor, Value};

/// Key of the label.
const SIZE_LABEL: &str = "general.size_label";

/// Number of parameters of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// All parameters.
    n_params: u64,
    /// Parameters of one expert per layer.
    one_expert: u64,
    /// Parameters of all experts.
    all_experts: u64,
    /// Experts per layer.
    n_expert: u64,
}

impl Size {
    /// Returns the number of all parameters.
    pub fn n_params(self) -> u64 {
        self.n_params
    }

    /// Counts the parameters of these tensors.
    pub fn of(tensors: &[Tensor]) -> Size {
        let mut size = Size::default();
        let (mut n_stack, mut n_expert) = (0, 0);
        for tensor in tensors {
            let n_elements = tensor.n_elements();
            size.n_params += n_elements;
            if let ([_, _, experts, ..], true) = (&tensor.shape[..], tensor.name.contains("_exps."))
            {
                size.one_expert += n_elements.checked_div(*experts).unwrap_or(0);
                size.all_experts += n_elements;
                n_expert += experts;
                n_stack += 1;
            }
        }
        size.n_expert = n_expert.checked_div(n_stack).unwrap_or(0);
        size
    }

    /// Formats the number of parameters; for MoE models, the number of experts and the size with one of
    /// them.
    pub fn label(self) -> String {
        let active = self.n_params - self.all_experts + self.one_expert;
        match self.n_expert {
            0 => label(self.n_params),
            n => format!("{n}x{}", label(active)),
        }
    }
}

/// Formats a number of parameters as a size label: at least two digits, and a unit.
fn label(n_params: u64) -> String {
    let n = n_params as f64;
    let (scaled, unit) = if n > 1e12 {
        (n * 1e-12, 'T')
    } else if n > 1e9 {
        (n * 1e-9, 'B')
    } else if n > 1e6 {
        (n * 1e-6, 'M')
    } else {
        (n * 1e-3, 'K')
    };
    let n_digits = match scaled.round_ties_even() {
        0.0 => 0,
        whole => whole.to_string().len(),
    };
    format!("{scaled:.*}{unit}", 2usize.saturating_sub(n_digits))
}

/// Replaces the label of a file that was changed from the tensors `before` to the tensors `after`. A label that
/// belongs to the model's name, or that is not that of its tensors, stays.
pub fn update_label(metadata: &mut Metadata, before: &[Tensor], after: &[Tensor]) {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str);
    let Some(found) = text(SIZE_LABEL) else {
        return;
    };
    let mut words = text("general.name").unwrap_or_default().split_whitespace();
    if found == Size::of(before).label() && !words.any(|word| word == found) {
        metadata.set(SIZE_LABEL, Size::of(after).label());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_two_digits() {
        for (n_params, expected) in [
            (596049920, "596M"),
            (8030261248, "8.0B"),
            (1235814400, "1.2B"),
            (388000, "388K"),
            (999, "1.0K"),
            (500, "0.50K"),
            (999499, "999K"),
            (1000000, "1000K"),
            (1000001, "1.0M"),
            (99949999999, "100B"),
            (35000000000, "35B"),
            (1600000000000, "1.6T"),
            (2500000, "2.5M"),
            (0, "0.00K"),
        ] {
            assert_eq!(label(n_params), expected);
        }
    }
}
