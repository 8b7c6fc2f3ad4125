//! A setting: no speculator, one speculator, or a chain of them.

use runner::speculate::SpecType;

/// The speculators of one run, in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) spec_types: Vec<SpecType>,
}

impl Setting {
    /// Decoding without drafts.
    pub(super) const PLAIN: Setting = Setting {
        spec_types: Vec::new(),
    };

    /// Each speculator alone, and then the chain of all of them if `as_chain` and there are several.
    pub(super) fn all(spec_types: &[SpecType], as_chain: bool) -> Vec<Setting> {
        let alone = spec_types.chunks(1);
        let chain = (as_chain && spec_types.len() > 1).then_some(spec_types);
        let setting = |spec_types: &[SpecType]| Setting {
            spec_types: spec_types.to_vec(),
        };
        alone.chain(chain).map(setting).collect()
    }

    /// The only speculator; `None` for plain decoding and for a chain.
    pub(super) fn kind(&self) -> Option<SpecType> {
        match self.spec_types.as_slice() {
            [kind] => Some(*kind),
            _ => None,
        }
    }

    /// The names of the speculators, separated by commas.
    pub(super) fn name(&self) -> String {
        let names: Vec<&str> = self.spec_types.iter().map(|kind| kind.name()).collect();
        names.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_comes_after_its_members() {
        let types = [SpecType::NgramSimple, SpecType::DraftMtp];
        let names = |types: &[SpecType], as_chain| {
            let settings = Setting::all(types, as_chain);
            settings.iter().map(Setting::name).collect::<Vec<_>>()
        };
        let chain = "ngram-simple,draft-mtp";
        assert_eq!(names(&types, true), ["ngram-simple", "draft-mtp", chain]);
        assert_eq!(names(&types, false), ["ngram-simple", "draft-mtp"]);
        assert_eq!(names(&types[..1], true), ["ngram-simple"]);
        assert!(names(&[], true).is_empty());
    }
}
