#!/usr/bin/env bash
# Measures the CPU time of one run and of 1, 4 and 16 shards on one machine, with finish, alternately three times: for
# one file with shared and separate parts, and for a split model. The files must be equal.
#
#   SCALE_MB=4000 tests/scale/overhead.sh
source "$(dirname "$0")/common.sh"
prepare
exec python3 "$root/tests/scale/overhead.py" "$SPECCONV"
