//! Kernels compiled ahead of time, for where NVRTC is missing: PTX for the oldest devices and drivers
//! there is support for, which any later driver finishes for the device that it has.
//!
//! `kernels/tests/nvrtc.rs` makes the file, and sees that it is of these sources.

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib;

use super::compile::{Arch, sources_hash};
use super::device::Unit;
use super::source;

/// A hash of the sources, then the texts of all units in order, packed.
static FILE: &[u8] = include_bytes!("ahead.bin");

/// Bytes of the hash.
const HASH: usize = 32;

/// What it is compiled for.
pub const ARCH: Arch = Arch { major: 8, minor: 0 };

/// PTX of every unit.
pub struct Ahead(Vec<(Unit, Vec<u8>)>);

impl Ahead {
    /// `None` where it is not of these sources.
    pub fn find() -> Option<Ahead> {
        Ahead::read(FILE)
    }

    fn read(file: &[u8]) -> Option<Ahead> {
        let packed = file.strip_prefix(sources_hash(ARCH).as_slice())?;
        let texts = decompress_to_vec_zlib(packed).ok()?;
        // Each ends with a zero, as the driver wants it.
        let texts = texts.split_inclusive(|&byte| byte == 0).map(<[u8]>::to_vec);
        let units: Vec<Unit> = source::units().collect();
        let n_unit = units.len();
        let ahead = Ahead(units.into_iter().zip(texts).collect());
        (ahead.0.len() == n_unit).then_some(ahead)
    }

    /// The file of texts in the order of [`source::units`].
    pub fn pack(texts: &[Vec<u8>]) -> Vec<u8> {
        let texts: Vec<u8> = texts
            .iter()
            .flat_map(|text| [text, &[0][..]].concat())
            .collect();
        let packed = compress_to_vec_zlib(&texts, 9);
        [&sources_hash(ARCH)[..HASH], &packed].concat()
    }

    /// The text of a unit, with a zero at its end.
    pub fn ptx(&self, unit: Unit) -> &[u8] {
        let found = self.0.iter().find(|(of, _)| *of == unit);
        &found.expect("all units are there").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_read() {
        let text = |unit: Unit| format!("// {unit}").into_bytes();
        let texts: Vec<Vec<u8>> = source::units().map(text).collect();
        let file = Ahead::pack(&texts);
        let ahead = Ahead::read(&file).expect("of these sources");
        for (unit, text) in source::units().zip(texts) {
            assert_eq!(ahead.ptx(unit), [&text, &[0][..]].concat());
        }
        assert!(Ahead::read(&file[1..]).is_none());
        assert!(Ahead::read(&file[..file.len() - 9]).is_none());
        assert!(Ahead::read(&Ahead::pack(&[])).is_none());
    }
}
