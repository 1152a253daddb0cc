#!/bin/sh
# Several workers on one folder, of this machine or of others that see it: workers.sh GRID.toml FOLDER [WORKERS]
# Each takes the runs that nobody works on; one that dies is replaced by whoever comes next. Ctrl-C saves all of them.
set -eu
grid=$1 out=$2 workers=${3:-2}
trap 'kill -TERM $pids 2>/dev/null || true; wait; exit 130' INT TERM
pids=
for k in $(seq "$workers"); do
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} ${FEDSMOO:-fedsmoo} sweep "$grid" --out "$out" 2>"$out.worker$k.log" &
    pids="$pids $!"
done
status=0
for pid in $pids; do wait "$pid" || status=$?; done
exit "$status"
