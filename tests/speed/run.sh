#!/usr/bin/env bash
# Measures the gain of speculation on an idle machine, for the bundled family or for a given model with the
# flags of its drafts.
#
#   tests/speed/run.sh [repetitive|parallel|auto|break-even].. [--threads N] [--rounds N]
#   tests/speed/run.sh repetitive -m model.gguf
#
# SPECRUN and SPECCONV name the programs; otherwise they are built. Needs cargo and python3.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${SPECRUN:-} || -z ${SPECCONV:-} ]]; then
    cargo build --profile dist --features full --bins
    target=${CARGO_TARGET_DIR:-target}
    SPECRUN=$target/dist/specrun SPECCONV=$target/dist/specconv
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 tests/speed/speculation.py "$SPECRUN" "$SPECCONV" "$work" "$@"
