//! The arithmetic that a reduction is written in, once for every instruction set.
//!
//! A reduction runs over 32 lanes: lane `l` takes elements `l`, `l + 32`, `l + 64`, ... in order,
//! each by one fused multiply-add, the last ones padded with zeros; a fixed tree then adds the
//! lanes. No instruction set here is wider than 32 lanes and every operation is rounded as IEEE 754
//! says, so all of them give the same bits.

/// Lanes of a reduction, and elements of the smallest quantized block.
pub(crate) const LANES: usize = 32;

/// The operations of one instruction set.
///
/// A value of an implementing type is proof that the processor has those instructions.
pub(crate) trait Simd: Copy + Send + Sync {
    /// 32 values.
    type Lanes: Copy;

    /// `value` in every lane.
    fn splat(self, value: f32) -> Self::Lanes;

    /// Element `l` in lane `l`.
    fn load(self, chunk: &[f32; LANES]) -> Self::Lanes;

    /// Lane `l` to element `l`.
    fn store(self, lanes: Self::Lanes, chunk: &mut [f32; LANES]);

    /// `a * b`.
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;

    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes;

    /// The sum of all lanes: lane `l` adds lane `l + 16`, then `l + 8`, `l + 4`, `l + 2`, `l + 1`.
    fn sum(self, lanes: Self::Lanes) -> f32;

    /// Up to 32 elements, zeros in the other lanes.
    #[inline(always)]
    fn load_part(self, part: &[f32]) -> Self::Lanes {
        if let Some(chunk) = part.first_chunk() {
            return self.load(chunk);
        }
        let mut chunk = [0.0; LANES];
        chunk[..part.len()].copy_from_slice(part);
        self.load(&chunk)
    }

    /// The first lanes to up to 32 elements.
    #[inline(always)]
    fn store_part(self, lanes: Self::Lanes, part: &mut [f32]) {
        if let Some(chunk) = part.first_chunk_mut() {
            return self.store(lanes, chunk);
        }
        let mut chunk = [0.0; LANES];
        self.store(lanes, &mut chunk);
        part.copy_from_slice(&chunk[..part.len()]);
    }

    /// `a . b`.
    #[inline(always)]
    fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        let (a, a_tail) = a.as_chunks::<LANES>();
        let (b, b_tail) = b.as_chunks::<LANES>();
        let mut acc = self.splat(0.0);
        for (a, b) in a.iter().zip(b) {
            acc = self.mul_add(self.load(a), self.load(b), acc);
        }
        if !a_tail.is_empty() {
            acc = self.mul_add(self.load_part(a_tail), self.load_part(b_tail), acc);
        }
        self.sum(acc)
    }
}

/// A computation that runs on whatever instruction set the processor has.
///
/// Implementations mark `run` and everything it calls `#[inline(always)]`: only what is inlined
/// into the entry point of an instruction set is compiled for it.
pub(crate) trait Kernel {
    /// Runs the computation.
    fn run<S: Simd>(self, simd: S);
}

/// Plain Rust: the specification of the others, and what every processor can run.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    type Lanes = [f32; LANES];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Lanes {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, chunk: &[f32; LANES]) -> Self::Lanes {
        *chunk
    }

    #[inline(always)]
    fn store(self, lanes: Self::Lanes, chunk: &mut [f32; LANES]) {
        *chunk = lanes;
    }

    #[inline(always)]
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        std::array::from_fn(|l| a[l] * b[l])
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes {
        std::array::from_fn(|l| a[l].mul_add(b[l], c[l]))
    }

    #[inline(always)]
    fn sum(self, mut lanes: Self::Lanes) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for l in 0..half {
                lanes[l] += lanes[l + half];
            }
            half /= 2;
        }
        lanes[0]
    }
}
