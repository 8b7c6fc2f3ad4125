#!/bin/bash
# Runs the shards of a plan as a job array, then joins them. PLAN is on a file system that all nodes share.
#
#   integrations/slurm/run.sh PLAN.json [sbatch options, such as --partition=cpu --time=2:00:00]
#
# A shard that fails is requeued up to three times; a lost node requeues its shards by itself. Prints the numbers of the
# two jobs. SPECCONV names the program, THREADS the cores of a shard [default: 4].
set -euo pipefail

if [ $# -lt 1 ]; then
    echo "usage: $0 PLAN.json [sbatch options]" >&2
    exit 2
fi
plan=$(realpath "$1")
shift
specconv=${SPECCONV:-specconv}
threads=${THREADS:-4}
read -r last folder < <(python3 -c '
import json, sys
plan = json.load(open(sys.argv[1]))
print(len(plan["shards"]) - 1, plan["folder"])' "$plan")

array=$(sbatch --parsable --requeue --open-mode=append --chdir="$folder" --cpus-per-task="$threads" \
    --array="0-$last" --job-name=specconv-run "$@" <<JOB
#!/bin/bash
"$specconv" run "$plan" --shard "\$SLURM_ARRAY_TASK_ID" --threads "$threads" && exit 0
code=\$?
# A shard continues where it stopped, so an error that passes, such as a full disk, costs little.
if [ "\${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
    scontrol requeue "\${SLURM_ARRAY_JOB_ID}_\${SLURM_ARRAY_TASK_ID}"
    sleep 60
fi
exit "\$code"
JOB
)
finish=$(sbatch --parsable --dependency="afterok:$array" --kill-on-invalid-dep=yes --chdir="$folder" \
    --job-name=specconv-finish "$@" <<JOB
#!/bin/bash
"$specconv" finish "$plan"
JOB
)
echo "$array $finish"
