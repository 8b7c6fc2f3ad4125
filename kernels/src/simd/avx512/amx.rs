//! AMX: products of a tile with sixteen activation rows.

use std::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::simd::LANES;
use crate::simd::matrix::MatrixUnit;
use crate::simd::packed::{ROWS, WordBytes};

/// Proof that this process may use AMX with 8-bit integers.
#[derive(Clone, Copy)]
pub(crate) struct Amx(());

impl Amx {
    /// Asks the system for permission the first time.
    pub(crate) fn new() -> Option<Amx> {
        static IS_ALLOWED: OnceLock<bool> = OnceLock::new();
        IS_ALLOWED
            .get_or_init(|| has_amx() && request_permission())
            .then_some(Amx(()))
    }

    /// Configures the unit for this thread.
    #[inline(always)]
    pub(crate) fn configure(self) -> AmxUnit {
        // SAFETY: the instruction is available, and reads one configuration.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &CONFIGURATION, options(nostack, readonly, preserves_flags));
        }
        AmxUnit(PhantomData)
    }
}

/// Checks for the instructions, bits 24 and 25 of leaf 7.
fn has_amx() -> bool {
    const BITS: u32 = 1 << 24 | 1 << 25;
    std::arch::x86_64::__cpuid_count(7, 0).edx & BITS == BITS
}

/// Linux saves the large registers only for processes that ask for it.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` of `asm/prctl.h`.
    const REQUEST: libc::c_long = 0x1023;
    /// The state component of the tile registers.
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call changes nothing but the permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// Shapes of the tile registers, the operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Registers 0 and 1 have sums, 2 and 3 activations, 4 and 5 weights: four bytes of a column of words for each of sixteen
/// weight rows.
static CONFIGURATION: Configuration = {
    let mut configuration = Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    let mut i = 0;
    while i < 2 {
        configuration.row_bytes[i] = size_of::<WordBytes>() as u16;
        configuration.rows[i] = ROWS as u8;
        configuration.row_bytes[2 + i] = LANES as u16;
        configuration.rows[2 + i] = ROWS as u8;
        configuration.row_bytes[4 + i] = size_of::<WordBytes>() as u16;
        configuration.rows[4 + i] = (LANES / 4) as u8;
        i += 1;
    }
    configuration
};

/// The unit, configured for this thread, which it cannot leave. The compiler uses no tile registers, so the statements below
/// do not name those they change.
pub(crate) struct AmxUnit(PhantomData<*const ()>);

impl Drop for AmxUnit {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the value proves that the instruction is available.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// Clears a register of sums and adds products of unsigned by signed bytes.
macro_rules! multiply {
    ($sums:literal, $x:literal, $words:literal, $from_words:expr, $from_x:expr, $stride:expr) => {
        // SAFETY: the value proves that the instructions are available and the registers configured; the loads read
        // one tile, and one row of quants of each element.
        unsafe {
            asm!(
                concat!("tileloadd ", $x, ", [{x} + {stride}]"),
                concat!("tileloadd ", $words, ", [{words} + {word}]"),
                concat!("tilezero ", $sums),
                concat!("tdpbusd ", $sums, ", ", $x, ", ", $words),
                x = in(reg) $from_x,
                stride = in(reg) $stride,
                words = in(reg) $from_words,
                word = in(reg) size_of::<WordBytes>(),
                options(nostack, readonly, preserves_flags),
            );
        }
    };
}

/// Writes a register of sums.
macro_rules! store {
    ($sums:literal, $to:expr) => {
        // SAFETY: as above; the register has as many rows as the array.
        unsafe {
            asm!(
                concat!("tilestored [{to} + {row}], ", $sums),
                to = in(reg) $to,
                row = in(reg) size_of::<WordBytes>(),
                options(nostack, preserves_flags),
            );
        }
    };
}

impl MatrixUnit for AmxUnit {
    #[inline(always)]
    fn multiply<const ACCUMULATOR: usize, T>(
        &self,
        words: &[WordBytes; LANES / 4],
        x: &[T; ROWS],
        quants: impl Fn(&T) -> &[u32; LANES / 4],
    ) {
        let x = quants(&x[0]).as_ptr();
        match ACCUMULATOR {
            0 => multiply!("tmm0", "tmm2", "tmm4", words.as_ptr(), x, size_of::<T>()),
            _ => multiply!("tmm1", "tmm3", "tmm5", words.as_ptr(), x, size_of::<T>()),
        }
    }

    #[inline(always)]
    fn store<const ACCUMULATOR: usize>(&self, sums: &mut [WordBytes; ROWS]) {
        match ACCUMULATOR {
            0 => store!("tmm0", sums.as_mut_ptr()),
            _ => store!("tmm1", sums.as_mut_ptr()),
        }
    }
}
