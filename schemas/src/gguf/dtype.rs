//! Element types of tensors: a table of ids, names and block sizes.

use std::fmt;

/// The element type of a tensor, by its ggml id.
///
/// Unknown ids are kept: such tensors are copied byte for byte, and decoding them is an error that
/// names the id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DType(pub u32);

/// Block layout of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The ggml id, as stored in files.
    pub id: u32,
    /// The ggml name.
    pub name: &'static str,
    /// Elements per block.
    pub block_len: u64,
    /// Bytes per block.
    pub block_bytes: u64,
}

macro_rules! dtypes {
    ($($name:ident = $id:literal, $len:literal / $bytes:literal;)*) => {
        #[allow(non_upper_case_globals, missing_docs)]
        impl DType {
            $(pub const $name: DType = DType($id);)*
        }
        /// All types that ggml (b11434) can store in a file; removed ids are left out.
        const LAYOUTS: &[Layout] = &[
            $(Layout { id: $id, name: stringify!($name), block_len: $len, block_bytes: $bytes },)*
        ];
    };
}

dtypes! {
    F32 = 0, 1 / 4;
    F16 = 1, 1 / 2;
    Q4_0 = 2, 32 / 18;
    Q4_1 = 3, 32 / 20;
    Q5_0 = 6, 32 / 22;
    Q5_1 = 7, 32 / 24;
    Q8_0 = 8, 32 / 34;
    Q8_1 = 9, 32 / 36;
    Q2_K = 10, 256 / 84;
    Q3_K = 11, 256 / 110;
    Q4_K = 12, 256 / 144;
    Q5_K = 13, 256 / 176;
    Q6_K = 14, 256 / 210;
    Q8_K = 15, 256 / 292;
    IQ2_XXS = 16, 256 / 66;
    IQ2_XS = 17, 256 / 74;
    IQ3_XXS = 18, 256 / 98;
    IQ1_S = 19, 256 / 50;
    IQ4_NL = 20, 32 / 18;
    IQ3_S = 21, 256 / 110;
    IQ2_S = 22, 256 / 82;
    IQ4_XS = 23, 256 / 136;
    I8 = 24, 1 / 1;
    I16 = 25, 1 / 2;
    I32 = 26, 1 / 4;
    I64 = 27, 1 / 8;
    F64 = 28, 1 / 8;
    IQ1_M = 29, 256 / 56;
    BF16 = 30, 1 / 2;
    TQ1_0 = 34, 256 / 54;
    TQ2_0 = 35, 256 / 66;
    MXFP4 = 39, 32 / 17;
    NVFP4 = 40, 64 / 36;
    Q1_0 = 41, 128 / 18;
    Q2_0 = 42, 64 / 18;
}

impl DType {
    /// Returns the layout; `None` for an unknown id.
    pub fn layout(self) -> Option<&'static Layout> {
        LAYOUTS.iter().find(|layout| layout.id == self.0)
    }

    /// Returns the type with a ggml name, case-insensitively.
    pub fn by_name(name: &str) -> Option<DType> {
        LAYOUTS
            .iter()
            .find(|layout| layout.name.eq_ignore_ascii_case(name))
            .map(|layout| DType(layout.id))
    }

    /// Returns all known types, by id.
    pub fn all() -> impl Iterator<Item = DType> {
        LAYOUTS.iter().map(|layout| DType(layout.id))
    }

    /// Returns the bits per element, block scales included; `None` if the type is unknown.
    pub fn bits_per_weight(self) -> Option<f64> {
        let layout = self.layout()?;
        Some(layout.block_bytes as f64 * 8.0 / layout.block_len as f64)
    }

    /// Returns the bytes of a row of `ne0` elements; `None` if the id is unknown, `ne0` is not a
    /// multiple of the block length, or the size overflows.
    pub fn row_bytes(self, ne0: u64) -> Option<u64> {
        let layout = self.layout()?;
        if !ne0.is_multiple_of(layout.block_len) {
            return None;
        }
        (ne0 / layout.block_len).checked_mul(layout.block_bytes)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout() {
            Some(layout) => f.write_str(layout.name),
            None => write!(f, "type {}", self.0),
        }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_unique_and_found() {
        for (i, a) in LAYOUTS.iter().enumerate() {
            assert!(
                LAYOUTS[i + 1..]
                    .iter()
                    .all(|b| a.id != b.id && a.name != b.name)
            );
            assert_eq!(DType::by_name(&a.name.to_lowercase()), Some(DType(a.id)));
        }
        assert_eq!(DType(4).layout(), None, "a removed id");
        assert_eq!(DType(9999).to_string(), "type 9999");
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(DType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(DType::Q4_K.row_bytes(511), None);
        assert_eq!(DType::F64.row_bytes(u64::MAX), None);
        assert_eq!(DType(99).row_bytes(32), None);
    }
}
