//! [`FType`]: the type of a whole file, a mix of element types.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use schemas::gguf::DType;

use crate::nearest::suggest;

/// Target type of a file. Most tensors get its default element type; the rules of the mix choose
/// the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum FType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q8_0,
    Q5_0,
    Q5_1,
    Q2_K,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
    IQ2_XXS,
    IQ2_XS,
    Q2_K_S,
    IQ3_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ3_M,
    IQ2_S,
    IQ2_M,
    IQ4_XS,
    IQ1_M,
    BF16,
    TQ1_0,
    TQ2_0,
    MXFP4_MOE,
    Q1_0,
    Q2_0,
    /// Every tensor unmodified.
    COPY,
}

/// An entry of the table of file types.
struct FTypeSpec {
    ftype: FType,
    name: &'static str,
    /// `general.file_type`, and the default element type.
    stored: Option<(u32, DType)>,
}

macro_rules! ftypes {
    ($($name:ident = $id:literal, $dtype:ident;)*) => {
        const FTYPES: &[FTypeSpec] = &[
            $(FTypeSpec {
                ftype: FType::$name,
                name: stringify!($name),
                stored: Some(($id, DType::$dtype)),
            },)*
            FTypeSpec { ftype: FType::COPY, name: "COPY", stored: None },
        ];
    };
}

ftypes! {
    F32 = 0, F32;
    F16 = 1, F16;
    Q4_0 = 2, Q4_0;
    Q4_1 = 3, Q4_1;
    Q8_0 = 7, Q8_0;
    Q5_0 = 8, Q5_0;
    Q5_1 = 9, Q5_1;
    Q2_K = 10, Q2_K;
    Q3_K_S = 11, Q3_K;
    Q3_K_M = 12, Q3_K;
    Q3_K_L = 13, Q3_K;
    Q4_K_S = 14, Q4_K;
    Q4_K_M = 15, Q4_K;
    Q5_K_S = 16, Q5_K;
    Q5_K_M = 17, Q5_K;
    Q6_K = 18, Q6_K;
    IQ2_XXS = 19, IQ2_XXS;
    IQ2_XS = 20, IQ2_XS;
    Q2_K_S = 21, Q2_K;
    IQ3_XS = 22, IQ3_S;
    IQ3_XXS = 23, IQ3_XXS;
    IQ1_S = 24, IQ1_S;
    IQ4_NL = 25, IQ4_NL;
    IQ3_S = 26, IQ3_S;
    IQ3_M = 27, IQ3_S;
    IQ2_S = 28, IQ2_XS;
    IQ2_M = 29, IQ2_S;
    IQ4_XS = 30, IQ4_XS;
    IQ1_M = 31, IQ1_M;
    BF16 = 32, BF16;
    TQ1_0 = 36, TQ1_0;
    TQ2_0 = 37, TQ2_0;
    MXFP4_MOE = 38, MXFP4;
    Q1_0 = 40, Q1_0;
    Q2_0 = 41, Q2_0;
}

/// Alternative names.
const ALIASES: &[(&str, FType)] = &[
    ("Q3_K", FType::Q3_K_M),
    ("Q4_K", FType::Q4_K_M),
    ("Q5_K", FType::Q5_K_M),
];

/// The one value of `general.file_type` that llama.cpp b11434 defines and cannot write.
const NVFP4: (u32, &str) = (39, "NVFP4");

/// Returns the name of a value of `general.file_type`. The key is only descriptive: the types of the
/// tensors determine the content.
pub fn file_type_name(id: u32) -> Option<&'static str> {
    let written = FTYPES.iter().map(|row| (row.stored, row.name));
    let written = written.filter_map(|(stored, name)| Some((stored?.0, name)));
    let mut known = written.chain([NVFP4]);
    known.find(|&(known, _)| known == id).map(|(_, name)| name)
}

/// Flag in `general.file_type` for a guessed type, as in llama.cpp.
const GUESSED: u32 = 1024;

/// Guessed file type by the most frequent element type.
const GUESSES: &[(DType, u32)] = &[
    (DType::F32, 0),
    (DType::F16, 1),
    (DType::Q4_0, 2),
    (DType::Q4_1, 3),
    (DType::Q8_0, 7),
    (DType::Q5_0, 8),
    (DType::Q5_1, 9),
    (DType::Q2_K, 10),
    (DType::Q3_K, 12),
    (DType::Q4_K, 15),
    (DType::Q5_K, 17),
    (DType::Q6_K, 18),
    (DType::IQ2_XXS, 19),
    (DType::IQ2_XS, 20),
    (DType::IQ3_XXS, 23),
    (DType::IQ1_S, 24),
    (DType::IQ4_NL, 25),
    (DType::IQ3_S, 26),
    (DType::IQ2_S, 28),
    (DType::IQ4_XS, 30),
    (DType::IQ1_M, 31),
    (DType::BF16, 32),
    (DType::TQ1_0, 36),
    (DType::TQ2_0, 37),
    (DType::NVFP4, 39),
    (DType::Q1_0, 40),
    (DType::Q2_0, 41),
];

/// Guesses `general.file_type` of a file that does not state it, from the most frequent type of its
/// tensors in output order; of equally frequent ones, the first to reach that count.
pub(crate) fn guess(tensors: impl Iterator<Item = DType>) -> u32 {
    let mut counts: HashMap<DType, u32> = HashMap::new();
    let (mut most, mut max) = (DType::F32, 0);
    for dtype in tensors {
        let count = counts.entry(dtype).or_default();
        *count += 1;
        if *count > max {
            (most, max) = (dtype, *count);
        }
    }
    let found = GUESSES.iter().find(|&&(dtype, _)| dtype == most);
    GUESSED | found.map_or(0, |&(_, id)| id)
}

impl FType {
    /// Returns all file types.
    pub fn all() -> impl Iterator<Item = FType> {
        FTYPES.iter().map(|row| row.ftype)
    }

    fn row(self) -> &'static FTypeSpec {
        let mut rows = FTYPES.iter();
        rows.find(|row| row.ftype == self)
            .expect("the table has an entry for every file type")
    }

    /// Returns the name, as in llama.cpp.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the value of `general.file_type`; `None` for [`FType::COPY`], which keeps the
    /// input's.
    pub fn id(self) -> Option<u32> {
        self.row().stored.map(|(id, _)| id)
    }

    /// True for the types that suit most users: the best quality at their size.
    pub fn is_recommended(self) -> bool {
        matches!(
            self,
            FType::Q4_K_M | FType::Q5_K_M | FType::Q6_K | FType::Q8_0
        )
    }

    /// Returns the type of tensors without a special rule; `None` for [`FType::COPY`].
    pub fn default_dtype(self) -> Option<DType> {
        self.row().stored.map(|(_, dtype)| dtype)
    }
}

impl fmt::Display for FType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for an unknown file type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "file type {found:?} is unknown{}, expected one of {}",
    suggest(found, spellings()),
    names()
)]
pub struct UnknownFType {
    /// The name.
    pub found: String,
}

fn names() -> String {
    let names: Vec<_> = FTYPES.iter().map(|row| row.name).collect();
    names.join(", ")
}

/// Returns all names that [`FType::from_str`] accepts.
fn spellings() -> impl Iterator<Item = &'static str> {
    let names = FTYPES.iter().map(|row| row.name);
    names.chain(ALIASES.iter().map(|&(name, _)| name))
}

impl FromStr for FType {
    type Err = UnknownFType;

    /// Parses a name or an alias, case-insensitively, or a value of `general.file_type`.
    fn from_str(text: &str) -> Result<FType, UnknownFType> {
        let named = FType::all().map(|ftype| (ftype.name(), ftype));
        let mut named = named.chain(ALIASES.iter().copied());
        if let Some((_, ftype)) = named.find(|(name, _)| name.eq_ignore_ascii_case(text)) {
            return Ok(ftype);
        }
        let id = text.parse().ok();
        FType::all()
            .find(|ftype| id.is_some() && ftype.id() == id)
            .ok_or_else(|| UnknownFType {
                found: text.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_aliases_and_numbers() {
        for ftype in FType::all() {
            assert_eq!(ftype.name().to_lowercase().parse(), Ok(ftype));
            if let Some(id) = ftype.id() {
                assert_eq!(id.to_string().parse(), Ok(ftype));
            }
        }
        assert_eq!("q4_k".parse(), Ok(FType::Q4_K_M));
        assert_eq!("0".parse(), Ok(FType::F32), "not COPY, which has no number");
        let error = "Q9".parse::<FType>().unwrap_err().to_string();
        assert!(error.starts_with("file type \"Q9\" is unknown, expected one of F32, F16, Q4_0"));
        let error = "q4-k-m".parse::<FType>().unwrap_err().to_string();
        assert!(
            error.starts_with("file type \"q4-k-m\" is unknown (did you mean Q4_K_M?), expected")
        );
        for ftype in FType::all().filter(|&ftype| ftype != FType::COPY) {
            assert_eq!(ftype.id().and_then(file_type_name), Some(ftype.name()));
        }
        assert_eq!(file_type_name(39), Some("NVFP4"));
        assert_eq!(file_type_name(4), None);
    }
}
