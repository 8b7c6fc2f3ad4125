#!/usr/bin/env bash
# Builds the programs twice, from two copies of the sources in folders with other names, and compares the hashes.
# The commit is that of the repository.
set -euo pipefail

cd "$(dirname "$0")/../.."
TOOL_COMMIT=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export TOOL_COMMIT SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for copy in first second-with-a-longer-name; do
    mkdir "$work/$copy"
    git archive HEAD | tar -x -C "$work/$copy"
    (
        cd "$work/$copy"
        RUSTFLAGS="--remap-path-prefix=$PWD=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
            cargo build --release --locked -p specconv
        sha256sum target/release/specconv target/release/specrun
    ) | tee "$work/$copy.sha256"
done
cmp "$work/first.sha256" "$work/second-with-a-longer-name.sha256"
echo "both builds have the same hashes"
