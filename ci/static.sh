#!/usr/bin/env bash
# Builds static programs as a release has them. Their bytes depend on the commit, the target and the compiler, and not
# on the folder or the time.
#
# usage: static.sh TARGET FOLDER      such as x86_64-unknown-linux-musl out
#
# Needs the target (rustup target add TARGET), and for musl the compiler CC [default: musl-gcc, of Debian's musl-tools].
# With a target of glibc, the programs are static as well. TOOL_COMMIT [default: HEAD] is the commit that they report.
set -euo pipefail

target=${1:?target}
out=$(realpath -m "${2:?folder of the programs}")
cd "$(dirname "$0")/.."
TOOL_COMMIT=${TOOL_COMMIT:-$(git rev-parse HEAD)}
export TOOL_COMMIT
case $target in
*-musl) export "CC_${target//-/_}=${CC:-musl-gcc}" ;;
esac
RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$PWD=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
    cargo build --profile dist --locked -p specconv --features full --target "$target"
mkdir -p "$out"
cp "${CARGO_TARGET_DIR:-target}/$target/dist/specconv" "${CARGO_TARGET_DIR:-target}/$target/dist/specrun" "$out"
