//! Four-bit codes of 32 elements: byte `j` holds element `j` low and element `j + 16` high.

#[inline(always)]
pub(super) fn pack(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| (codes[j] & 15) | (codes[j + 16] << 4))
}

#[inline(always)]
pub(super) fn unpack(bytes: &[u8; 16]) -> [u8; 32] {
    let mut codes = [0; 32];
    for j in 0..16 {
        codes[j] = bytes[j] & 15;
        codes[j + 16] = bytes[j] >> 4;
    }
    codes
}

/// Bit 4 of each code, element `j` in bit `j`, little endian.
#[inline(always)]
pub(super) fn pack_fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bits = |bit: u32, code: &u8| (bit << 1) | u32::from((code >> 4) & 1);
    codes.iter().rev().fold(0, bits).to_le_bytes()
}

/// Five-bit codes from their nibbles and their fifth bits.
#[inline(always)]
pub(super) fn unpack_with_fifth(bytes: &[u8; 16], fifth: &[u8; 4]) -> [u8; 32] {
    let fifth = u32::from_le_bytes(*fifth);
    let low = unpack(bytes);
    std::array::from_fn(|j| low[j] | (((fifth >> j) & 1) << 4) as u8)
}
