//! How fast a CUDA device copies its own memory: what the speed of decoding is measured against.
//!
//! usage: cuda [DEVICE]
//!
//! Exits with 2 where there is no device, and says what was looked for.

#![expect(clippy::print_stdout, reason = "the figure is the result")]
#![expect(clippy::print_stderr, reason = "so is what stands in its way")]

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use kernels::backend::Backend;
use kernels::cuda::{Buffer, Cuda, DriverConfig, Launching};

/// Elements that are copied at a time: far more than caches hold.
const LEN: usize = 1 << 28;

const ROUNDS: usize = 20;

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure() -> Result<(), Box<dyn Error>> {
    // cargo hands benches a flag.
    let index = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let config = DriverConfig {
        index: index.unwrap_or(0),
        cache: None,
    };
    let cuda = Cuda::open(config, Launching::Graphs)?;
    let (src, mut dst) = (cuda.buffer(LEN), cuda.buffer(LEN));
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        wait(&cuda, &dst);
        let start = Instant::now();
        cuda.copy_rows(&src, 0, &mut dst, 0, LEN, 1);
        wait(&cuda, &dst);
        best = best.min(start.elapsed().as_secs_f64());
    }
    if let Some(failure) = cuda.failure() {
        return Err(failure.into());
    }
    // Every byte is read and written.
    let bytes = 2 * LEN * size_of::<f32>();
    println!(
        "{}: copies at {:.1} GB/s",
        cuda.name(),
        bytes as f64 / best / 1e9
    );
    Ok(())
}

/// Until everything asked for before is done.
fn wait(cuda: &Cuda, buffer: &Buffer) {
    cuda.download(buffer, 0, &mut [0.0]);
}
