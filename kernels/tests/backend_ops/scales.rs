//! Products with arbitrary scales: equal bits on all instruction sets.

use std::sync::Arc;

use kernels::backend::{Backend, MatmulOp, WeightData};
use kernels::cpu::{Cpu, CpuConfig};
use proptest::prelude::*;
use proptest::sample::select;
use schemas::gguf::DType;

const N_COLS: usize = 256;
const N_ROWS: usize = 17;

/// The bits of the products of a weight with some rows.
fn products(cpu: &Cpu, weight: &WeightData, x: &[f32]) -> Vec<u32> {
    let weight = cpu.load(weight.clone()).expect("a weight of whole blocks");
    let n = x.len() / N_COLS;
    let mut input = cpu.buffer(x.len());
    cpu.upload(x, &mut input, 0);
    let mut out = cpu.buffer(n * N_ROWS);
    cpu.matmul(&weight, &input, n, &mut out);
    let mut found = vec![0.0; n * N_ROWS];
    cpu.download(&out, 0, &mut found);
    // All NaN are alike.
    let bits = |x: f32| match x.is_nan() {
        true => f32::NAN.to_bits(),
        false => x.to_bits(),
    };
    found.into_iter().map(bits).collect()
}

proptest! {
    /// Arbitrary bytes have scales that are infinite, NaN and subnormal. Without the second highest bit, scales in half
    /// precision are finite, so that a matrix unit is used. Large and small activations make products overflow and vanish.
    #[test]
    fn instruction_sets_multiply_any_scale_alike(
        dtype in select(vec![DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::MXFP4]),
        seed in any::<u64>(),
        n in 17..40usize,
        exponent in -149..120i32,
        mask in select(vec![0xff, 0xbf]),
    ) {
        // A linear congruential generator.
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let row_bytes = dtype.row_bytes(N_COLS as u64).expect("whole blocks") as usize;
        let bytes: Vec<u8> = (0..N_ROWS * row_bytes).map(|_| next() & mask).collect();
        let weight = WeightData {
            dtype,
            n_rows: N_ROWS,
            n_cols: N_COLS,
            bytes: Arc::new(bytes),
        };
        let unit = 2f32.powi(exponent);
        let x: Vec<f32> = (0..n * N_COLS).map(|_| f32::from(next() as i8) * unit).collect();
        let mut found = Cpu::available().into_iter().map(|isa| {
            let config = CpuConfig { threads: 1, isa: Some(isa), ..CpuConfig::default() };
            let cpu = Cpu::new(config).expect("available");
            (isa, products(&cpu, &weight, &x))
        });
        let (first, expected) = found.next().expect("the portable one at least");
        for (isa, found) in found {
            prop_assert!(found == expected, "{first} and {isa}");
        }
    }
}
