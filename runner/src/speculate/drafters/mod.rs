//! The list of speculators, one file each. A file has a `SPEC`, the implementation, and `build`,
//! which is a function instead of a field of [`Spec`] because it is generic over the backend.
//! docs/adding.md describes how to add one.

mod draft_dflash;
mod draft_dspark;
mod draft_eagle3;
mod draft_mtp;
mod draft_simple;
mod ngram_cache;
mod ngram_map_k;
mod ngram_map_k4v;
mod ngram_mod;
mod ngram_simple;

use kernels::backend::Backend;

use super::Speculator;
use super::spec::{Parts, Spec};
use crate::error::Error;

pub use draft_eagle3::eagle3;
pub use draft_mtp::mtp;
pub use draft_simple::{DraftModel, TranslatedDraft};
pub use ngram_cache::NgramCache;
pub use ngram_mod::{NgramMod, NgramModConfig};
pub use ngram_simple::NgramSimple;

/// Declares [`SpecType`] from the list of speculators: a variant and a module each.
macro_rules! speculators {
    ($($(#[$doc:meta])* $kind:ident => $module:ident,)*) => {
        /// The speculators, named as in llama.cpp.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum SpecType {
            $($(#[$doc])* $kind,)*
        }

        impl SpecType {
            /// All speculators, in the order in which llama.cpp asks them. We ask them in the order
            /// the user gives.
            pub const ALL: [SpecType; [$($module::SPEC.name),*].len()] = [$(SpecType::$kind),*];

            /// Returns the description.
            pub fn spec(self) -> &'static Spec {
                match self {
                    $(SpecType::$kind => &$module::SPEC,)*
                }
            }

            /// Builds the speculator.
            pub(crate) fn build<B: Backend>(self, parts: Parts<'_, B>) -> Box<dyn Speculator<B>> {
                match self {
                    $(SpecType::$kind => $module::build(parts),)*
                }
            }
        }
    };
}

speculators! {
    /// The continuation of the last occurrence of the newest tokens.
    NgramSimple => ngram_simple,
    /// As `NgramSimple`, with an index; a draft is limited to what was accepted of the key's last
    /// draft.
    NgramMapK => ngram_map_k,
    /// As `NgramMapK`, but drafts only if one continuation dominates.
    NgramMapK4v => ngram_map_k4v,
    /// Token by token from one hash table that all sequences share.
    NgramMod => ngram_mod,
    /// Token by token: the most frequent continuation in this text and in lookup files.
    NgramCache => ngram_cache,
    /// A smaller model with the same vocabulary, or another one and a vocabulary map.
    DraftSimple => draft_simple,
    /// An EAGLE-3 draft, which reads hidden states of the target.
    DraftEagle3 => draft_eagle3,
    /// The target's MTP head, inline or in a separate file.
    DraftMtp => draft_mtp,
    /// A block draft, which proposes all tokens in one pass.
    DraftDflash => draft_dflash,
    /// A block draft whose tokens also depend on the token before them.
    DraftDspark => draft_dspark,
}

impl SpecType {
    /// Returns the name used on the command line.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the name that ends or begins with this one, such as `draft-mtp` for `mtp`.
    fn nearest(name: &str) -> Option<&'static str> {
        let name = name.to_lowercase().replace('_', "-");
        let mut names = SpecType::ALL.into_iter().map(SpecType::name);
        let is_part = |known: &&str| known.ends_with(&name) || known.starts_with(&name);
        names.find(is_part).filter(|_| !name.is_empty())
    }

    /// Returns the speculator with this name.
    ///
    /// # Errors
    /// No speculator has this name; the error lists the known names.
    pub fn by_name(name: &str) -> Result<SpecType, Error> {
        let mut all = SpecType::ALL.into_iter();
        all.find(|kind| kind.name() == name)
            .ok_or_else(|| Error::UnknownSpeculator {
                found: name.to_owned(),
                known: SpecType::ALL.map(SpecType::name).join(", "),
                nearest: SpecType::nearest(name),
            })
    }
}
