#!/usr/bin/env bash
# Builds the wheel, installs it without a network in clean virtual environments, and tests it: the programs, the
# module, stubs and documents.
#
# usage: run.sh [PYTHON..]      interpreters [default: python3]
#
# PROFILE (default release) is the Cargo profile. WHEEL tests an existing wheel instead.
set -euo pipefail

cd "$(dirname "$0")/../.."
pythons=("${@:-python3}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() {
    printf '\n== %s\n' "$*"
    "$@"
}

python3 python/generate_reports.py --check
if [ -z "${WHEEL:-}" ]; then
    python3 -m venv "$work/build"
    "$work/build/bin/pip" install --quiet 'maturin>=1.9,<2'
    (cd python && step "$work/build/bin/maturin" build --profile "${PROFILE:-release}" -o "$work/dist")
    WHEEL=$(ls "$work"/dist/*.whl)
fi

for python in "${pythons[@]}"; do
    "$python" -m venv "$work/venv"
    bin=$work/venv/bin
    step "$bin/python" --version
    # The wheel alone, without a network: programs work without numpy.
    step "$bin/pip" install --quiet --no-index "$WHEEL"
    (cd "$work" && step "$bin/specconv" --version && step "$bin/specconv" demo >/dev/null)
    # Test tools come from PyPI.
    step "$bin/pip" install --quiet numpy gguf transformers pytest mypy pyright
    step "$bin/python" -m pytest --quiet -p no:cacheprovider python/tests
    (
        cd "$work"
        step "$bin/mypy" --strict -p specconv
        step "$bin/mypy" --strict "$OLDPWD/python/tests/typed.py"
        step "$bin/pyright" --pythonpath "$bin/python" "$OLDPWD/python/tests/typed.py"
    )
    rm -rf "$work/venv"
done
