#!/usr/bin/env bash
# Builds the static programs twice, from two copies of the sources in folders with other names, and compares the
# hashes.
#
# usage: reproducible.sh [FOLDER]      keeps the programs in FOLDER
#
# TARGET [default: x86_64-unknown-linux-musl] is the target. Without the standard library for musl,
# x86_64-unknown-linux-gnu gives static programs as well.
set -euo pipefail

keep=${1:+$(realpath -m "$1")}
cd "$(dirname "$0")/../.."
TOOL_COMMIT=$(git rev-parse HEAD)
export TOOL_COMMIT
unset CARGO_TARGET_DIR
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for copy in first second-with-a-longer-name; do
    mkdir "$work/$copy"
    git archive HEAD | tar -x -C "$work/$copy"
    "$work/$copy/ci/static.sh" "${TARGET:-x86_64-unknown-linux-musl}" "$work/$copy/out"
    (cd "$work/$copy/out" && sha256sum specconv specrun) | tee "$work/$copy.sha256"
done
cmp "$work/first.sha256" "$work/second-with-a-longer-name.sha256"
if [ -n "$keep" ]; then
    mkdir -p "$keep"
    cp "$work/first/out/specconv" "$work/first/out/specrun" "$keep"
fi
echo "both builds have the same hashes"
