//! Implements [`Lanes`](super::lanes::Lanes) for the vectors of an instruction set. Its file `lanes.rs` has
//! a module with one function per operation; [`lanes_of!`] generates the rest.

/// Defines functions that are compiled for, and callable only under, the named target features.
macro_rules! compiled_for {
    ($features:literal: $($function:item)*) => {
        $(#[target_feature(enable = $features)] #[inline] $function)*
    };
}

/// Calls the function of that name in the module above.
macro_rules! call {
    ($module:ident::$function:ident($($argument:expr),*)) => {
        // SAFETY: code over these lanes runs only in kernels of their instruction set, after it was detected.
        unsafe { $module::$function($($argument),*) }
    };
}

macro_rules! operators {
    ($type:ident, $module:ident: $($trait:ident $method:ident $function:ident),+) => {
        $(impl $trait for $type {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                $type(call!($module::$function(self.0, other.0)))
            }
        })+
    };
}

macro_rules! lanes_of {
    ($lanes:ident($vector:ty) of $n:literal, $mask:ident($raw_mask:ty) from $module:ident) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $lanes($vector);

        #[derive(Clone, Copy)]
        pub(crate) struct $mask($raw_mask);

        operators!($lanes, $module: Add add add, Sub sub sub, Mul mul mul, Div div div);
        operators!($mask, $module: BitAnd bitand both, BitOr bitor either);

        impl Lanes for $lanes {
            const N: usize = $n;

            type Mask = $mask;

            #[inline(always)]
            fn splat(x: f32) -> Self {
                $lanes(call!($module::splat(x)))
            }

            #[inline(always)]
            fn load(x: &[f32]) -> Self {
                $lanes(call!($module::load(x)))
            }

            #[inline(always)]
            fn store(self, out: &mut [f32]) {
                call!($module::store(self.0, out))
            }

            #[inline(always)]
            fn columns(x: &[f32], stride: usize, out: &mut [Self]) {
                call!($module::columns(x, stride, out))
            }

            #[inline(always)]
            fn abs(self) -> Self {
                $lanes(call!($module::abs(self.0)))
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                $lanes(call!($module::sqrt(self.0)))
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                $lanes(call!($module::max(self.0, other.0)))
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                $lanes(call!($module::min(self.0, other.0)))
            }

            #[inline(always)]
            fn gt(self, other: Self) -> $mask {
                $mask(call!($module::gt(self.0, other.0)))
            }

            #[inline(always)]
            fn eq(self, other: Self) -> $mask {
                $mask(call!($module::eq(self.0, other.0)))
            }

            #[inline(always)]
            fn ne(self, other: Self) -> $mask {
                $mask(call!($module::ne(self.0, other.0)))
            }

            #[inline(always)]
            fn select(mask: $mask, yes: Self, no: Self) -> Self {
                $lanes(call!($module::select(mask.0, yes.0, no.0)))
            }

            #[inline(always)]
            fn largest(self) -> f32 {
                call!($module::largest(self.0))
            }

            #[inline(always)]
            fn bits(mask: $mask) -> u64 {
                call!($module::bits(mask.0))
            }

            #[inline(always)]
            fn away_from_zero(self, x: f32) -> Self {
                $lanes(call!($module::away_from_zero(self.0, x)))
            }

            #[inline(always)]
            fn round_to_quant(self, min: i32, max: i32) -> Self {
                $lanes(call!($module::round_to_quant(self.0, min, max)))
            }

            #[inline(always)]
            fn from_quants(quants: &[u8]) -> Self {
                $lanes(call!($module::from_quants(quants)))
            }

            #[inline(always)]
            fn truncate_to_bytes(self, out: &mut [u8]) {
                call!($module::truncate_to_bytes(self.0, out))
            }

            #[inline(always)]
            fn nearest(self, steps: &Steps) -> Self {
                $lanes(call!($module::nearest(self.0, steps)))
            }

            #[inline(always)]
            fn look_up(table: &[f32; 16], quants: &[u8]) -> Self {
                $lanes(call!($module::look_up(table, quants)))
            }
        }
    };
}

pub(super) use {call, compiled_for, lanes_of, operators};
