#!/usr/bin/env bash
# Everything that needs a CUDA device, in one call: the kernels against the processor, verification of
# the bundled models, compute-sanitizer where it is, and the benchmark. Exits with 1 if a check fails,
# with 2 if there is no device, and says then what was looked for.
#
# usage: tests/gpu/run.sh                 build, then run here
#        tests/gpu/run.sh build DIR       only build: DIR can be taken to a machine without cargo
#        tests/gpu/run.sh run DIR [OUT]   run what was built; results go to OUT (default DIR/results)
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)

# Lists the devices that this program finds; without one there is nothing to do.
need_device() {
    "$1" devices | tee "$2"
    if ! grep -q '^cuda:' "$2"; then
        echo "no CUDA device: $(tail -n 1 "$2")" >&2
        exit 2
    fi
}

build() {
    mkdir -p "$1"
    (
        cd "$root"
        cargo build --workspace --release --bins --examples
        # The paths of test programs stand in cargo's messages.
        cargo test --workspace --release --no-run --test backend_ops --message-format=json
        cargo build --workspace --release --bench cuda --message-format=json
    ) | grep -oE '"executable":"[^"]+"' | cut -d'"' -f4 >"$1/programs"
    target=${CARGO_TARGET_DIR:-$root/target}/release
    cp "$target/specconv" "$target/specrun" "$target/examples/random_qwen3" "$1/"
    cp "$(grep '/backend_ops-' "$1/programs" | tail -n 1)" "$1/backend_ops"
    cp "$(grep '/cuda-' "$1/programs" | tail -n 1)" "$1/copy_bandwidth"
    rm "$1/programs"
    cp -r "$root/models" "$1/"
    cp "$root/tests/gpu/run.sh" "$1/"
}

failed=0
# Runs a check whose output is kept, and goes on when it fails.
check() {
    local name=$1
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    if ! "$@" 2>&1 | tee "$out/$name.txt"; then
        echo "FAILED $name"
        failed=1
    fi
}

run() {
    dir=$(cd "$1" && pwd)
    out=${2:-$dir/results}
    mkdir -p "$out"
    need_device "$dir/specrun" "$out/devices.txt"
    (nvidia-smi || true) >"$out/nvidia-smi.txt" 2>&1
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT

    export CUDA_TEST_DEVICE=0
    check kernels "$dir/backend_ops" --nocapture a_cuda_device
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck synccheck; do
            check "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
                "$dir/backend_ops" --nocapture a_cuda_device
        done
    else
        echo "skipped: no compute-sanitizer"
    fi

    "$dir/specconv" quantize "$dir/models/tiny-qwen35-mtp" "$work/target.gguf" Q4_K_M >/dev/null
    "$dir/specconv" convert "$dir/models/tiny-draft" -o "$work/draft.gguf" >/dev/null
    check verify "$dir/specrun" verify --device cuda -m "$work/target.gguf" --matrix quick \
        --report "$out/verify.json"
    check verify-draft "$dir/specrun" verify --device cuda -m "$work/target.gguf" \
        -md "$work/draft.gguf" --report "$out/verify-draft.json"
    # The same text on either, bit for bit.
    for device in cpu cuda; do
        "$dir/specrun" logits --device "$device" -m "$work/target.gguf" --tokens 1,2,3,4,5,6,7,8 \
            >"$out/logits-$device.txt"
    done
    check same-logits cmp "$out/logits-cpu.txt" "$out/logits-cuda.txt"

    check bandwidth "$dir/copy_bandwidth"
    for size in 0.6b 7b; do
        "$dir/random_qwen3" "$work/bf16.gguf" "$size"
        "$dir/specconv" quantize "$work/bf16.gguf" "$work/$size.gguf" Q4_K_M >/dev/null
        rm "$work/bf16.gguf"
        check "bench-$size" "$dir/specrun" bench --device cuda -m "$work/$size.gguf" --width 16
        "$dir/specrun" bench --device cuda -m "$work/$size.gguf" --width 16 --json \
            >"$out/bench-$size.json" || failed=1
        rm "$work/$size.gguf"
    done
    printf '\nresults in %s\n' "$out"
    exit "$failed"
}

case ${1:-all} in
build) build "$2" ;;
run) run "${@:2}" ;;
all)
    target=${CARGO_TARGET_DIR:-$root/target}
    built=$target/gpu
    mkdir -p "$built"
    (cd "$root" && cargo build --workspace --release --bin specrun)
    need_device "$target/release/specrun" "$built/devices.txt"
    build "$built"
    run "$built"
    ;;
*)
    grep '^# usage' -A 2 "$0" >&2
    exit 2
    ;;
esac
