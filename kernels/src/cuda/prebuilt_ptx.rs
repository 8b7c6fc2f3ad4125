//! Prebuilt kernels, for machines without NVRTC: PTX for the oldest supported compute capability and
//! driver, which newer drivers compile for their device.
//!
//! `kernels/tests/nvrtc.rs` creates the file and checks that it matches the sources.

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib;

use super::compile::{Arch, sources_hash};
use super::device::Unit;
use super::source;

/// A hash of the sources, then the compressed PTX of all units in order.
static FILE: &[u8] = include_bytes!("prebuilt_ptx.bin");

/// Bytes of the hash.
const HASH: usize = 32;

/// Target architecture of the PTX.
pub const ARCH: Arch = Arch { major: 8, minor: 0 };

/// PTX of every unit.
pub struct PrebuiltPtx(Vec<(Unit, Vec<u8>)>);

impl PrebuiltPtx {
    /// Returns the prebuilt kernels; `None` if they do not match the sources.
    pub fn find() -> Option<PrebuiltPtx> {
        PrebuiltPtx::read(FILE)
    }

    fn read(file: &[u8]) -> Option<PrebuiltPtx> {
        let packed = file.strip_prefix(sources_hash(ARCH).as_slice())?;
        let texts = decompress_to_vec_zlib(packed).ok()?;
        // Each text ends with a zero byte, as the driver requires.
        let texts = texts.split_inclusive(|&byte| byte == 0).map(<[u8]>::to_vec);
        let units: Vec<Unit> = source::units().collect();
        let n_unit = units.len();
        let prebuilt = PrebuiltPtx(units.into_iter().zip(texts).collect());
        (prebuilt.0.len() == n_unit).then_some(prebuilt)
    }

    /// Packs texts, in the order of [`source::units`], into the contents of the file.
    pub fn pack(texts: &[Vec<u8>]) -> Vec<u8> {
        let texts: Vec<u8> = texts
            .iter()
            .flat_map(|text| [text, &[0][..]].concat())
            .collect();
        let packed = compress_to_vec_zlib(&texts, 9);
        [&sources_hash(ARCH)[..HASH], &packed].concat()
    }

    /// Returns the PTX of a unit, with a terminating zero.
    pub fn ptx(&self, unit: Unit) -> &[u8] {
        let found = self.0.iter().find(|(of, _)| *of == unit);
        &found.expect("every unit is prebuilt").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_texts_are_read_back() {
        let text = |unit: Unit| format!("// {unit}").into_bytes();
        let texts: Vec<Vec<u8>> = source::units().map(text).collect();
        let file = PrebuiltPtx::pack(&texts);
        let prebuilt = PrebuiltPtx::read(&file).expect("of these sources");
        for (unit, text) in source::units().zip(texts) {
            assert_eq!(prebuilt.ptx(unit), [&text, &[0][..]].concat());
        }
        assert!(PrebuiltPtx::read(&file[1..]).is_none());
        assert!(PrebuiltPtx::read(&file[..file.len() - 9]).is_none());
        assert!(PrebuiltPtx::read(&PrebuiltPtx::pack(&[])).is_none());
    }
}
