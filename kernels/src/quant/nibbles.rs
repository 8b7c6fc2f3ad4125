//! Four-bit codes of 32 elements: byte `j` holds element `j` low and element `j + 16` high.

#[inline(always)]
pub(super) fn pack(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| (codes[j] & 15) | (codes[j + 16] << 4))
}

/// Sets each element to `decode` of its code.
#[inline(always)]
pub(super) fn decode(bytes: &[u8; 16], out: &mut [f32; 32], decode: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (out, byte) in low.iter_mut().zip(bytes) {
        *out = decode(byte & 15);
    }
    for (out, byte) in high.iter_mut().zip(bytes) {
        *out = decode(byte >> 4);
    }
}

/// Bit 4 of each code, element `j` in bit `j`, little endian.
#[inline(always)]
pub(super) fn pack_fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bits = |bit: u32, code: &u8| (bit << 1) | u32::from((code >> 4) & 1);
    codes.iter().rev().fold(0, bits).to_le_bytes()
}

/// Sets each element to `decode` of its code of five bits.
#[inline(always)]
pub(super) fn decode_with_fifth(
    bytes: &[u8; 16],
    fifth: &[u8; 4],
    out: &mut [f32; 32],
    decode: impl Fn(u8) -> f32,
) {
    let fifth = u32::from_le_bytes(*fifth);
    let (low, high) = out.split_at_mut(16);
    for (j, (out, byte)) in low.iter_mut().zip(bytes).enumerate() {
        *out = decode((byte & 15) | (((fifth >> j) & 1) << 4) as u8);
    }
    for (j, (out, byte)) in high.iter_mut().zip(bytes).enumerate() {
        *out = decode((byte >> 4) | (((fifth >> (j + 16)) & 1) << 4) as u8);
    }
}
