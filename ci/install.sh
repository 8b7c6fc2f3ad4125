#!/usr/bin/env bash
# Installs the programs for a CI job: the step "Install" of action.yml.
#
# VERSION   source: build the repository that contains this script; needs Rust
#           none: use the programs on the PATH
#           otherwise the version of the Python package, such as ==0.1.0 (from the first release on)
set -euo pipefail

case ${VERSION:?source, none or a version} in
none) specrun --version ;;
source) cargo install --locked --path "$(dirname "$0")/../cli" ;;
*) python3 -m pip install --disable-pip-version-check "specconv$VERSION" ;;
esac
