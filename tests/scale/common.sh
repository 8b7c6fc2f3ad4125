# Functions of the checks with real engines. Each check compares the files of many shards with those of one run.
#
# SPECCONV and SPECRUN name the programs (default: the release build), SCALE_WORK a folder for 2 GB of files,
# SCALE_MB the size of the model in megabytes of 16-bit weights (default: 256).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SPECCONV=$(realpath "${SPECCONV:-$root/target/release/specconv}")
SPECRUN=$(realpath "${SPECRUN:-$root/target/release/specrun}")
work=${SCALE_WORK:-$(mktemp -d)}
mkdir -p "$work"
work=$(realpath "$work")
cd "$work"
export SPECCONV SPECRUN

# Makes a model, and quantizes it in one run: in.gguf, one.gguf.
prepare() {
    [ -e in.gguf ] || python3 "$root/tests/scale/model.py" in.gguf "${SCALE_MB:-256}"
    [ -e one.gguf ] || "$SPECCONV" quantize in.gguf one.gguf Q4_K_M -q
    expected=$(sha256sum < one.gguf)
}

# Plans the same in shards: plan NAME SHARDS writes NAME.json, for NAME.gguf.
plan() {
    rm -rf "$1.json" "$1.json.parts" "$1.gguf"
    "$SPECCONV" plan quantize in.gguf "$1.gguf" Q4_K_M --shards "$2" -o "$1.json" -q
}

# Fails unless NAME.gguf has the bytes of one run.
check() {
    [ "$(sha256sum < "$1.gguf")" = "$expected" ] || { echo "$1: other bytes than one run"; exit 1; }
}

# Makes a virtual environment with the pinned packages of a file, once.
environment() {
    [ -x "$work/venv-$1/bin/python3" ] || python3 -m venv "$work/venv-$1"
    "$work/venv-$1/bin/pip" install -q -r "$root/tests/scale/$1.txt"
    PATH="$work/venv-$1/bin:$PATH"
}
