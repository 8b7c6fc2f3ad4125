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
    Q2_K_S,
    IQ4_NL,
    IQ4_XS,
    BF16,
    MXFP4_MOE,
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
    Q2_K_S = 21, Q2_K;
    IQ4_NL = 25, IQ4_NL;
    IQ4_XS = 30, IQ4_XS;
    BF16 = 32, BF16;
    MXFP4_MOE = 38, MXFP4;
}

/// Alternative names.
const ALIASES: &[(&str, FType)] = &[
    ("Q3_K", FType::Q3_K_M),
    ("Q4_K", FType::Q4_K_M),
    ("Q5_K", FType::Q5_K_M),
];

/// Ids and names of the file types of llama.cpp b11434. The key is only descriptive: the types of the
/// tensors determine the content.
const NAMES: [(u32, &str); 36] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];

/// Returns the name of a value of `general.file_type`, also of types that cannot be written.
pub fn file_type_name(id: u32) -> Option<&'static str> {
    let known = NAMES.iter().find(|(known, _)| *known == id);
    known.map(|&(_, name)| name)
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
#[error("file type {found:?} {}, expected one of {}", self.fault(), names())]
pub struct UnknownFType {
    /// The name.
    pub found: String,
}

/// Fault of a type that llama.cpp has and this program cannot write.
pub const UNWRITTEN: &str = "cannot be written yet";

impl UnknownFType {
    /// True if llama.cpp has the type, but this program cannot write it.
    pub fn is_known_elsewhere(&self) -> bool {
        let mut known = NAMES.iter();
        known.any(|(_, name)| name.eq_ignore_ascii_case(&self.found))
    }

    fn fault(&self) -> String {
        if self.is_known_elsewhere() {
            // Another type would not be what the user asked for.
            return UNWRITTEN.to_owned();
        }
        format!("is unknown{}", suggest(&self.found, spellings()))
    }
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
        for name in ["IQ2_XXS", "iq3_s", "TQ1_0"] {
            let error = name.parse::<FType>().unwrap_err().to_string();
            let expected = format!("file type {name:?} cannot be written yet, expected one of F32");
            assert!(error.starts_with(&expected), "{error}");
        }
        for ftype in FType::all().filter(|&ftype| ftype != FType::COPY) {
            assert_eq!(ftype.id().and_then(file_type_name), Some(ftype.name()));
        }
    }
}
