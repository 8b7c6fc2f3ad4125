#!/usr/bin/env bash
# Quantizes a random model with the shapes of Qwen3-0.6B with our program and with llama.cpp's, several times
# alternately, and prints the ratios of time and memory. The files must be equal.
#
#   tests/peer/quantize_bench.sh [--types Q4_K_M,Q8_0] [--isa avx512,avx2] [--threads N] [--runs N]
#
# PEER_BIN=DIR takes llama-quantize from DIR; otherwise it is built from its source archive on PyPI.
# BENCH_WORK names a folder for 3 GB of files, ideally in memory (default: /dev/shm, or else the
# folder for temporary files). Needs cargo and python3; build.sh lists what building needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/peer/build.sh llama-quantize

cargo build --profile dist --features full --bin specconv
cargo build --profile dist -p specconv-fixtures --example random_qwen3
target=${CARGO_TARGET_DIR:-target}
exec python3 tests/peer/quantize_bench.py "$PEER_BIN/llama-quantize" "$target/dist/specconv" \
    "$target/dist/examples/random_qwen3" "$@"
