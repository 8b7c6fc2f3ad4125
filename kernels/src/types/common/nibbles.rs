//! Packed four-bit quants of 32 elements: byte `j` has element `j` in its low nibble and element `j + 16`
//! in its high nibble.

use super::one_pass::numbers;
use crate::simd::lanes::Lanes;

#[inline(always)]
pub(crate) fn pack(quants: &[u8; 32]) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (low, high) = quants.split_at(16);
    for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = (low & 15) | (high << 4);
    }
    bytes
}

/// Unpacks the quants.
#[inline(always)]
pub(crate) fn unpack(bytes: &[u8; 16]) -> [u8; 32] {
    let mut quants = [0; 32];
    let (low, high) = quants.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = byte & 15;
        *high = byte >> 4;
    }
    quants
}

/// Sets each element to `decode` of its quant.
#[inline(always)]
pub(crate) fn decode<V: Lanes>(bytes: &[u8; 16], out: &mut [f32; 32], decode: impl Fn(V) -> V) {
    numbers(&unpack(bytes), out, decode);
}

/// Packs bit 4 of each quant below 32, little endian: bit `j` belongs to element `j`.
#[inline(always)]
pub(crate) fn pack_fifth_bits<V: Lanes>(quants: &[u8; 32]) -> [u8; 4] {
    let mut bits = 0;
    for (i, quants) in quants.chunks_exact(V::N).enumerate() {
        bits |= V::bits(V::from_quants(quants).gt(V::splat(15.5))) << (i * V::N);
    }
    (bits as u32).to_le_bytes()
}

/// Sets each element to `decode` of its five-bit quant.
#[inline(always)]
pub(crate) fn decode_with_fifth<V: Lanes>(
    bytes: &[u8; 16],
    fifth: &[u8; 4],
    out: &mut [f32; 32],
    decode: impl Fn(V) -> V,
) {
    let mut quants = unpack(bytes);
    for (quants, &fifth) in quants.as_chunks_mut::<8>().0.iter_mut().zip(fifth) {
        // Isolates bit `j` in byte `j`; then sets bit 7 of the bytes that are not zero.
        let bits = u64::from(fifth).wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let set = bits + 0x7f7f_7f7f_7f7f_7f7f;
        let fifth = (set >> 3) & 0x1010_1010_1010_1010;
        *quants = (u64::from_le_bytes(*quants) | fifth).to_le_bytes();
    }
    numbers(&quants, out, decode);
}
