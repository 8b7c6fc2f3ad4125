//! Speed of the quantizers of small types, ours and ggml's in one process: processor time of one thread for
//! the same rows in cache, taken alternately. The bytes must be equal.
//!
//! usage: `GGML_BASE=/path/to/libggml-base.so quant_peer [TYPE..]`

#![expect(clippy::print_stdout, reason = "the figures are the result")]

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::hint::black_box;

use kernels::cpu::Isa;
use kernels::types::{Codec, TYPES};
use libloading::{Library, Symbol};
use schemas::gguf::DType;

const N_COLS: usize = 1024;
const N_ROWS: usize = 16;

const ROUNDS: usize = 25;

/// `ggml_quantize_chunk`.
type QuantizeFn =
    unsafe extern "C" fn(c_int, *const f32, *mut c_void, i64, i64, i64, *const f32) -> usize;

/// Types with ggml's number; those with `true` are refused without importance.
const MEASURED: [(DType, c_int, bool); 10] = [
    (DType::IQ1_S, 19, true),
    (DType::IQ1_M, 29, false),
    (DType::IQ2_XXS, 16, true),
    (DType::IQ2_XS, 17, true),
    (DType::IQ2_S, 22, false),
    (DType::IQ3_XXS, 18, false),
    (DType::IQ3_S, 21, false),
    (DType::TQ1_0, 34, false),
    (DType::TQ2_0, 35, false),
    (DType::NVFP4, 40, false),
];

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::var("GGML_BASE").map_err(|_| "GGML_BASE: the path of libggml-base.so")?;
    // SAFETY: the initialisers of the library have no requirements.
    let library = unsafe { Library::new(path)? };
    // SAFETY: the type is that of the declaration in ggml.h.
    let theirs: Symbol<'_, QuantizeFn> = unsafe { library.get(b"ggml_quantize_chunk")? };
    let names: Vec<String> = std::env::args().skip(1).collect();
    println!("M weights/s: AVX-512, AVX2, the peer; the ratios to the peer");
    for (dtype, number, needs_importance) in MEASURED {
        let is_named = names.iter().any(|name| *name == dtype.to_string());
        if !is_named && names.iter().any(|name| !name.starts_with("--")) {
            continue;
        }
        for with_importance in [false, true] {
            if with_importance || !needs_importance {
                compare(&theirs, dtype, number, with_importance);
            }
        }
    }
    Ok(())
}

fn compare(theirs: &QuantizeFn, dtype: DType, number: c_int, with_importance: bool) {
    let codec = |isa| -> Option<Codec> {
        let found = TYPES
            .iter()
            .find(|t| t.codec(isa).is_some_and(|c| c.dtype() == dtype));
        found?.codec(isa)
    };
    let x = gaussian(N_ROWS * N_COLS);
    let importance: Vec<f32> = gaussian(N_COLS).iter().map(|x| 40.0 * x * x).collect();
    let importance = with_importance.then_some(&importance[..]);
    let n_bytes = N_ROWS * dtype.row_bytes(N_COLS as u64).expect("whole blocks") as usize;
    let (mut ours_out, mut their_out) = (vec![0u8; n_bytes], vec![0u8; n_bytes]);
    let mut seconds = [(); 3].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        for (isa, seconds) in [Isa::Avx512, Isa::Avx2].into_iter().zip(&mut seconds) {
            let Some(codec) = codec(isa) else { continue };
            let start = processor_time();
            codec.quantize(black_box(&x), importance, &mut ours_out);
            seconds.push(processor_time() - start);
        }
        let weights = importance.map_or(std::ptr::null(), <[f32]>::as_ptr);
        let start = processor_time();
        // SAFETY: as many rows, columns and bytes as the buffers have.
        unsafe {
            let (x, out) = (black_box(&x).as_ptr(), their_out.as_mut_ptr().cast());
            theirs(number, x, out, 0, N_ROWS as i64, N_COLS as i64, weights);
        }
        seconds[2].push(processor_time() - start);
        assert!(ours_out == their_out, "{dtype}: the same bytes");
    }
    let [avx512, avx2, peer] = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        let median = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN);
        (N_ROWS * N_COLS) as f64 / 1e6 / median
    });
    let importance = if with_importance {
        "importance"
    } else {
        "plain"
    };
    println!(
        "{dtype:8} {importance:10} {avx512:8.2} {avx2:8.2} {peer:8.2}   {:6.2}x {:6.2}x",
        avx512 / peer,
        avx2 / peer
    );
}

/// Nearly normal numbers of deviation 1/64.
fn gaussian(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..n)
        .map(|_| ((0..12).map(|_| next()).sum::<f32>() - 6.0) / 64.0)
        .collect()
}

/// Processor time of this thread in seconds.
fn processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
