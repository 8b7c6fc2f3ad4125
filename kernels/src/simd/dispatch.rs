//! Run-time selection of the instruction set that kernels run on.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

#[cfg(isa = "avx2")]
use super::avx2::Avx2;
#[cfg(isa = "avxvnni")]
use super::avx2::dots::Dotted;
#[cfg(isa = "avx2")]
use super::avx2::dots::Widened;
#[cfg(isa = "avx512")]
use super::avx512::Avx512;
#[cfg(target_arch = "x86_64")]
use super::cpu_features;
#[cfg(target_arch = "aarch64")]
use super::neon::{Dotted, Neon, Widened};
use super::portable::Portable;
use super::{Kernel, KernelInto, Simd};

/// Instruction sets that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512, and AMX for products of many activation rows.
    Amx,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX2 with FMA and F16C, and AVX-VNNI for products.
    AvxVnni,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// NEON with the `dotprod` extension.
    Dotprod,
    /// NEON.
    Neon,
    /// Plain Rust.
    Portable,
}

impl Isa {
    const NAMES: [(&str, Isa); 7] = [
        ("amx", Isa::Amx),
        ("avx512", Isa::Avx512),
        ("avxvnni", Isa::AvxVnni),
        ("avx2", Isa::Avx2),
        ("dotprod", Isa::Dotprod),
        ("neon", Isa::Neon),
        ("portable", Isa::Portable),
    ];
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Isa::NAMES.iter().find(|(_, isa)| isa == self);
        f.write_str(named.expect("each has a name").0)
    }
}

/// The name is not that of an instruction set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "instruction set {found:?} is unknown, expected amx, avx512, avxvnni, avx2, dotprod, neon or portable"
)]
pub struct UnknownIsa {
    /// The unknown name.
    pub found: String,
}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        let named = Isa::NAMES.iter().find(|(known, _)| *known == name);
        named.map(|&(_, isa)| isa).ok_or_else(|| UnknownIsa {
            found: name.to_owned(),
        })
    }
}

/// Evaluates an expression with the type of the instruction set.
macro_rules! each {
    ($implementation:expr, $simd:ident => $expression:expr) => {
        match $implementation {
            #[cfg(isa = "avx512")]
            Implementation::Avx512($simd) => $expression,
            #[cfg(isa = "avxvnni")]
            Implementation::AvxVnni(simd) => {
                // Only products differ: the others are not compiled again.
                let $simd = simd.widened();
                $expression
            }
            #[cfg(isa = "avx2")]
            Implementation::Avx2($simd) => $expression,
            #[cfg(target_arch = "aarch64")]
            Implementation::Dotprod($simd) => $expression,
            #[cfg(target_arch = "aarch64")]
            Implementation::Neon($simd) => $expression,
            Implementation::Portable($simd) => $expression,
        }
    };
}

/// An instruction set that this CPU is known to support.
#[derive(Clone, Copy)]
pub(crate) enum Implementation {
    #[cfg(isa = "avx512")]
    Avx512(Avx512),
    #[cfg(isa = "avxvnni")]
    AvxVnni(Avx2<Dotted>),
    #[cfg(isa = "avx2")]
    Avx2(Avx2<Widened>),
    #[cfg(target_arch = "aarch64")]
    Dotprod(Neon<Dotted>),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon<Widened>),
    Portable(Portable),
}

/// Returns the instruction sets that this CPU supports and the kernels were compiled for, best first.
pub(crate) fn implementations() -> Vec<Implementation> {
    let mut list = Vec::new();
    #[cfg(isa = "avx512")]
    list.extend(Avx512::with_amx().map(Implementation::Avx512));
    #[cfg(isa = "avx512")]
    list.extend(Avx512::new().map(Implementation::Avx512));
    #[cfg(isa = "avxvnni")]
    list.extend(Avx2::<Dotted>::new().map(Implementation::AvxVnni));
    #[cfg(isa = "avx2")]
    list.extend(Avx2::<Widened>::new().map(Implementation::Avx2));
    #[cfg(target_arch = "aarch64")]
    {
        list.extend(Neon::<Dotted>::new().map(Implementation::Dotprod));
        list.extend(Neon::<Widened>::new().map(Implementation::Neon));
    }
    list.push(Implementation::Portable(Portable));
    list
}

/// The instruction set of codecs and statistics. A backend has its own.
static CHOSEN: OnceLock<Implementation> = OnceLock::new();

/// Returns the instruction set of codecs and statistics, the best one unless [`choose`] came first.
pub(crate) fn chosen() -> Implementation {
    *CHOSEN.get_or_init(|| implementations()[0])
}

/// Makes an instruction set the chosen one unless another is in use; returns the one in use.
pub(crate) fn choose(implementation: Implementation) -> Isa {
    CHOSEN.get_or_init(|| implementation).isa()
}

/// Returns the best instruction set of this CPU, whether or not the kernels were compiled for it; not AMX, which is
/// compiled with AVX-512.
#[cfg(target_arch = "x86_64")]
pub(crate) fn best_of_cpu() -> Isa {
    let best = cpu_features::supported().first().copied();
    best.map_or(Isa::Portable, |name| {
        name.parse().expect("a name of the table")
    })
}

/// Returns the best instruction set of this CPU: the kernels were compiled for all.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn best_of_cpu() -> Isa {
    implementations()[0].isa()
}

impl Implementation {
    pub(crate) fn isa(self) -> Isa {
        match self {
            #[cfg(isa = "avx512")]
            Implementation::Avx512(simd) if simd.has_matrix_unit() => Isa::Amx,
            #[cfg(isa = "avx512")]
            Implementation::Avx512(_) => Isa::Avx512,
            #[cfg(isa = "avxvnni")]
            Implementation::AvxVnni(_) => Isa::AvxVnni,
            #[cfg(isa = "avx2")]
            Implementation::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "aarch64")]
            Implementation::Dotprod(_) => Isa::Dotprod,
            #[cfg(target_arch = "aarch64")]
            Implementation::Neon(_) => Isa::Neon,
            Implementation::Portable(_) => Isa::Portable,
        }
    }

    /// Runs a kernel, compiled for this instruction set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) {
        each!(self, simd => simd.run(kernel));
    }

    /// Runs a kernel that writes to `out`, compiled for this instruction set.
    pub(crate) fn run_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O) {
        each!(self, simd => simd.run_into(kernel, out));
    }

    /// Runs a kernel of an operation. Unit tests run the portable one, as those of products and types, so that they
    /// compile faster; `kernels/tests` compares all.
    pub(crate) fn run_operation<K: Kernel>(self, kernel: K) {
        #[cfg(test)]
        Portable.run(kernel);
        #[cfg(not(test))]
        self.run(kernel);
    }

    /// Runs products of quants.
    pub(crate) fn run_products<K: Kernel>(self, kernel: K) {
        match self {
            #[cfg(all(not(test), isa = "avxvnni"))]
            Implementation::AvxVnni(simd) => simd.run(kernel),
            _ => self.run_operation(kernel),
        }
    }

    /// Runs a kernel of a type, which writes to `out`.
    pub(crate) fn run_operation_into<K: KernelInto<O>, O: ?Sized>(self, kernel: K, out: &mut O) {
        #[cfg(test)]
        Portable.run_into(kernel, out);
        #[cfg(not(test))]
        self.run_into(kernel, out);
    }
}
