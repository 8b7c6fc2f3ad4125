#!/usr/bin/env bash
# What speculation brings, on an idle machine: the bundled family, or any model that is named with the
# flags of its drafts.
#
#   tests/speed/run.sh [repetitive|parallel|auto|break-even].. [--threads N] [--rounds N]
#   tests/speed/run.sh repetitive -m model.gguf
#
# SPECRUN and SPECCONV name programs; otherwise they are built. Needs cargo and python3.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${SPECRUN:-} || -z ${SPECCONV:-} ]]; then
    cargo build --release --bins
    target=${CARGO_TARGET_DIR:-target}
    SPECRUN=$target/release/specrun SPECCONV=$target/release/specconv
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 tests/speed/speculation.py "$SPECRUN" "$SPECCONV" "$work" "$@"
