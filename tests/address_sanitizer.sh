#!/usr/bin/env bash
# Runs the unit tests of the crates with unsafe code under AddressSanitizer. The stable compiler has the
# instrumentation, but needs permission to use it. The fuzz targets are built with it as well,
# in CI except for the kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 \
    cargo test --target "$host" --target-dir "${CARGO_TARGET_DIR:-target}/asan" \
    -p specconv-gguf -p specconv-kernels --lib -- gguf:: threads input cpu::
