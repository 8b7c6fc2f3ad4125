#!/usr/bin/env bash
# Runs the unit tests of the crates with unsafe code under AddressSanitizer, and every operation of the kernels with every
# instruction set of this CPU. The stable compiler has the instrumentation, but needs permission to use it. `fuzz/run`
# builds with it as well.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0
checked() {
    cargo test --target "$host" --target-dir "${CARGO_TARGET_DIR:-target}/asan" "$@"
}
checked -p specconv-gguf -p specconv-kernels --lib -- gguf:: threads input cpu::
# Unit tests of the kernels have portable products only.
SPECCONV_ISAS=supported checked -p specconv-kernels --test backend_ops -- operations joined scales
