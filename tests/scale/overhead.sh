#!/usr/bin/env bash
# Measures the CPU time of one run and of 1, 4 and 16 shards on one machine, with finish, alternately three times; and
# the same for a split model, whose parts are renamed. The files must be equal.
#
#   SCALE_MB=4000 tests/scale/overhead.sh
source "$(dirname "$0")/common.sh"
prepare
exec python3 "$root/tests/scale/overhead.py" "$SPECCONV"
