#!/usr/bin/env bash
# Runs plans with Ray: on one machine with four workers, of which one is killed at a random moment, and on a cluster of
# two node processes, of which one is removed. The files must be those of one run.
#
#   tests/scale/ray.sh [ROUNDS]          (default: 20)
source "$(dirname "$0")/common.sh"
environment ray
prepare
exec python3 "$root/tests/scale/ray_check.py" "$SPECCONV" "${1:-20}"
