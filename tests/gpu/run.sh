#!/usr/bin/env bash
# Runs everything that needs a CUDA device: the kernels against the CPU, verification of the bundled models,
# the benchmark, and compute-sanitizer if it is installed. Exits with 1 if a check fails or is cut short, and
# with 2 if there is no device, after printing which libraries were looked for. Ends after GPU_SECONDS
# (default 570). If DIR was built elsewhere, only the driver is needed.
#
# usage: tests/gpu/run.sh                 build, then run here
#        tests/gpu/run.sh build DIR       only build: DIR can be taken to a machine without cargo
#        tests/gpu/run.sh run DIR [OUT]   run what was built; results go to OUT (default DIR/results)
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
limit=${GPU_SECONDS:-570}

# Lists the devices; exits if there is none.
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
        # Cargo's messages have the paths of the test programs.
        cargo test --workspace --release --no-run --test backend_ops --message-format=json
        cargo build --workspace --release --bench cuda --message-format=json
    ) | grep -oE '"executable":"[^"]+"' | cut -d'"' -f4 >"$1/programs"
    target=${CARGO_TARGET_DIR:-$root/target}/release
    cp "$target/specconv" "$target/specrun" "$target/examples/random_qwen3" "$1/"
    cp "$(grep '/backend_ops-' "$1/programs" | tail -n 1)" "$1/backend_ops"
    cp "$(grep '/cuda-' "$1/programs" | tail -n 1)" "$1/copy_bandwidth"
    rm "$1/programs"
    cp -r "$root/models" "$root/conformance" "$1/"
    cp "$root/tests/gpu/run.sh" "$1/"
}

failed=0
# Runs a check for as long as there is time, keeps its output, and continues if it fails.
check() {
    local name=$1 code=0
    shift
    printf '\n== %s, at %s s: %s\n' "$name" "$SECONDS" "$*"
    # A function needs a shell of its own.
    if [ "$(type -t "$1")" = function ]; then
        set -- bash -c "$(declare -f "$1"); $(declare -p out); $(printf '%q ' "$@")"
    fi
    timeout "$(left)" "$@" >"$out/$name.txt" 2>&1 || code=$?
    tail -n 40 "$out/$name.txt"
    case $code in
    0) echo "passed $name" ;;
    124) echo "CUT SHORT $name" && failed=1 ;;
    *) echo "FAILED $name" && failed=1 ;;
    esac
}

# Runs the cases under a tool of compute-sanitizer, shared among several processes.
sanitize() {
    local share failed=0 processes=() shares
    shares=$(nproc)
    for ((share = 0; share < shares; share++)); do
        CUDA_TEST_SHARE=$share/$shares compute-sanitizer --tool "$1" --error-exitcode 1 \
            "$2" --nocapture a_cuda_device_gives >"$out/$1-$share.txt" 2>&1 &
        processes+=($!)
    done
    for process in "${processes[@]}"; do wait "$process" || failed=1; done
    grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY\|test result' "$out/$1"-*.txt || true
    return "$failed"
}

# Remaining seconds, at least one.
left() {
    local seconds=$((limit - SECONDS))
    echo $((seconds > 1 ? seconds : 1))
}

# A number of a result in JSON.
number() {
    sed -n "s/^ *\"$2\": *\([0-9.eE+-]*\),*$/\1/p" "$1" | head -n 1
}

# Decoding as a share of what copies reach, the cost of eight tokens, and how fast prompts are read, with
# so many multiply-adds for each of their tokens.
figures() {
    local copies ratio
    copies=$(sed -n 's/.*copies at \([0-9.]*\) GB.*/\1/p' "$out/bandwidth.txt")
    # A benchmark that failed has none.
    ratio=$(grep -A 3 '"n_tokens": 8,' "$1" | sed -n 's/.*"ratio": *\([0-9.]*\).*/\1/p' || true)
    awk -v name="$2" -v copies="${copies:-0}" -v ratio="${ratio:-0}" \
        -v decode="$(number "$1" decode_gigabytes_per_s)" \
        -v tokens="$(number "$1" decode_tokens_per_s)" \
        -v prompt="$(number "$1" prefill_tokens_per_s)" -v work="$3" 'BEGIN {
            share = copies > 0 ? decode / copies : 0
            printf "%s: decode %.1f tokens/s, %.1f GB/s, %.2f of copies (goal 0.70); ", name, tokens, decode, share
            printf "T(8)/T(1) %.2f (goal 1.15); prefill %.1f TFLOP/s\n", ratio, 2 * work * prompt / 1e12
        }' | tee -a "$out/figures.txt"
}

run() {
    dir=$(cd "$1" && pwd)
    out=${2:-$dir/results}
    mkdir -p "$out"
    need_device "$dir/specrun" "$out/devices.txt"
    (nvidia-smi || true) >"$out/nvidia-smi.txt" 2>&1
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    export SPECRUN_CACHE=$work/kernels CUDA_TEST_DEVICE=0

    # The most important first: checks on the device, then the benchmark, then the slow tools.
    check kernels "$dir/backend_ops" --nocapture a_cuda_device
    # Recorded runs of every architecture and drafter.
    check conformance "$dir/specrun" conformance --device cuda "$dir/conformance/traces"
    "$dir/specconv" quantize "$dir/models/tiny-qwen35-mtp" "$work/target.gguf" Q4_K_M >/dev/null
    "$dir/specconv" convert "$dir/models/tiny-draft" -o "$work/draft.gguf" >/dev/null
    # The logits must have the CPU's bits, with and without graphs.
    logits() { "$dir/specrun" logits --device "$1" -m "$work/target.gguf" --tokens 1,2,3,4,5,6,7,8; }
    logits cpu >"$out/logits-cpu.txt"
    logits cuda >"$out/logits-cuda.txt" || failed=1
    SPECRUN_CUDA_GRAPHS=off logits cuda >"$out/logits-one-by-one.txt" || failed=1
    check same-logits cmp "$out/logits-cpu.txt" "$out/logits-cuda.txt"
    check same-logits-one-by-one cmp "$out/logits-cpu.txt" "$out/logits-one-by-one.txt"
    # The text must be the same, too, greedy and with drafts, when no logits are requested.
    text() {
        "$dir/specrun" generate --device "$1" -n "$2" --spec-type "$3" --ignore-eos \
            -m "$work/target.gguf" -p 'def add(a, b):'
    }
    text cpu 64 none >"$out/text-cpu.txt"
    text cuda 64 none >"$out/text-cuda.txt" || failed=1
    text cuda 64 draft-mtp >"$out/text-drafted.txt" || failed=1
    check same-text cmp "$out/text-cpu.txt" "$out/text-cuda.txt"
    check same-text-drafted cmp "$out/text-cpu.txt" "$out/text-drafted.txt"
    # A context of several spans of attention.
    text cpu 1500 none >"$out/long-cpu.txt"
    text cuda 1500 ngram-simple,draft-mtp >"$out/long-drafted.txt" || failed=1
    check same-long-text cmp "$out/long-cpu.txt" "$out/long-drafted.txt"
    check verify "$dir/specrun" verify --device cuda -m "$work/target.gguf" --matrix quick \
        --overwrite --report "$out/verify.json"
    check verify-draft "$dir/specrun" verify --device cuda -m "$work/target.gguf" \
        -md "$work/draft.gguf" --overwrite --report "$out/verify-draft.json"
    check verify-chain "$dir/specrun" verify --device cuda -m "$work/target.gguf" --matrix quick \
        --spec-type ngram-simple,draft-mtp --parallel 4 -ctk q8_0 -ctv q8_0 \
        --overwrite --report "$out/verify-chain.json"

    check bandwidth "$dir/copy_bandwidth"
    # Multiply-adds per prompt token, from the shapes of these models.
    declare -A work_of=([0.6b]=440401920 [7b]=6525288448)
    for size in 0.6b 7b; do
        check "make-$size" "$dir/random_qwen3" "$work/bf16.gguf" "$size"
        check "quantize-$size" "$dir/specconv" quantize "$work/bf16.gguf" "$work/$size.gguf" Q4_K_M
        rm -f "$work/bf16.gguf"
        check "bench-$size" "$dir/specrun" bench --device cuda -m "$work/$size.gguf" --width 16 --json
        figures "$out/bench-$size.txt" "$size" "${work_of[$size]}"
        rm -f "$work/$size.gguf"
    done

    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck initcheck synccheck racecheck; do
            check "$tool" sanitize "$tool" "$dir/backend_ops"
        done
    else
        echo "skipped: no compute-sanitizer"
    fi
    printf '\nresults in %s\n' "$out"
    cat "$out/figures.txt" 2>/dev/null || true
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
