#!/usr/bin/env bash
# Runs a plan with GNU parallel: four jobs, one of which is killed and repeated. The file must be that of one run.
#
#   tests/scale/parallel.sh
source "$(dirname "$0")/common.sh"
prepare

plan parallel 8
parallel --jobs 4 --retries 3 "$SPECCONV" run parallel.json --shard {} --threads 1 -q ::: $(seq 0 7) > parallel.log 2>&1 &
job=$!
# The first shard that is found running is killed, once.
until victim=$(pgrep -n -f "^$SPECCONV run parallel.json"); do sleep 0.01; done
kill -9 "$victim"
wait $job
"$SPECCONV" finish parallel.json -q
check parallel
echo "$(parallel --version | head -1): 8 shards, 4 jobs, one killed and repeated: equal"
