#!/usr/bin/env bash
# Runs the workflow of integrations/snakemake with the local executor: with one job, with four, and interrupted and
# resumed. The files must be those of one run.
#
#   tests/scale/snakemake.sh
source "$(dirname "$0")/common.sh"
environment snakemake
prepare

cat > config.yaml <<CONFIG
models: {m: in.gguf}
types: [Q4_K_M, Q8_0]
shards: 8
verify: false
specconv: $SPECCONV
specrun: $SPECRUN
CONFIG
[ -e one-Q8_0.gguf ] || "$SPECCONV" quantize in.gguf one-Q8_0.gguf Q8_0 -q
run() {
    snakemake --snakefile "$root/integrations/snakemake/Snakefile" --configfile config.yaml --quiet all "$@"
}
compare() {
    cmp out/m-Q4_K_M.gguf one.gguf
    cmp out/m-Q8_0.gguf one-Q8_0.gguf
    rm -rf out plans .snakemake
}

rm -rf out plans .snakemake
mkdir -p out
run --cores 1
compare
mkdir -p out
run --cores 4 --jobs 4
compare
mkdir -p out
run --cores 4 --jobs 4 &
job=$!
until [ "$(ls plans/*.done 2> /dev/null | wc -l)" -ge 3 ]; do sleep 0.05; done
# Bash starts background jobs with SIGINT ignored.
kill -TERM $job
wait $job && code=0 || code=$?
done_before=$(find plans -name '*.done' | wc -l)
[ "$done_before" -gt 0 ] && [ "$done_before" -lt 16 ] || { echo "not interrupted: $done_before of 16 shards done"; exit 1; }
run --unlock > /dev/null 2>&1 || true
run --cores 4 --jobs 4 --rerun-incomplete
compare
echo "snakemake $(snakemake --version): one job, four jobs, and interrupted (exit code $code, $done_before of 16 shards" \
    "done) and resumed: equal"
