#!/usr/bin/env bash
# Runs a plan with Slurm on this machine: an array whose shard 2 fails at first and is requeued. Starts slurmctld, slurmd
# and munged of its own, and stops them at the end. Needs root, and Debian's packages slurmctld 22.05, slurmd,
# slurm-client and munge. The file must be that of one run.
#
#   tests/scale/slurm.sh
source "$(dirname "$0")/common.sh"
prepare

state=$work/slurm
mkdir -p "$state/spool" "$state/ctld" /run/munge
chown munge: /run/munge
[ -e /etc/munge/munge.key ] || mungekey --create
started=()
stop() {
    for pid in "${started[@]}"; do kill "$pid" 2> /dev/null || true; done
}
trap stop EXIT
setpriv --reuid munge --regid munge --clear-groups munged --foreground --force > "$state/munged.log" 2>&1 &
started+=($!)
until [ -S /run/munge/munge.socket.2 ]; do sleep 0.1; done
host=$(hostname -s)
cat > "$state/slurm.conf" <<CONF
ClusterName=check
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
MinJobAge=600
SchedulerParameters=sched_interval=1
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) Sockets=1 CoresPerSocket=$(nproc) ThreadsPerCore=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
export SLURM_CONF=$state/slurm.conf
slurmctld -D > "$state/slurmctld.log" 2>&1 &
started+=($!)
slurmd -D > "$state/slurmd.log" 2>&1 &
started+=($!)
until sinfo -h -o %t 2> /dev/null | grep -q idle; do sleep 0.5; done

plan slurm 6
# A program that fails the first time that it runs shard 2.
cat > failing <<PROGRAM
#!/bin/bash
if [ "\$1" = run ] && [ "\$4" = 2 ] && [ ! -e failed-once ]; then
    touch failed-once
    exit 2
fi
exec "$SPECCONV" "\$@"
PROGRAM
chmod +x failing
rm -f failed-once
read -r array finish < <(SPECCONV=$work/failing THREADS=1 "$root/integrations/slurm/run.sh" slurm.json)
until state_of=$(scontrol show job "$finish" | grep -o 'JobState=[A-Z]*') && [[ $state_of =~ COMPLETED|FAILED|CANCELLED ]]; do
    sleep 1
done
restarts=$(scontrol show job "${array}_2" | grep -o 'Restarts=[0-9]*')
[ "$state_of" = JobState=COMPLETED ] || { scontrol show job "$finish"; cat slurm-*.out; exit 1; }
[ "$restarts" = Restarts=1 ] || { echo "shard 2: $restarts, expected 1"; exit 1; }
check slurm
echo "$(slurmctld -V): array of 6, shard 2 failed and was requeued ($restarts): equal"
