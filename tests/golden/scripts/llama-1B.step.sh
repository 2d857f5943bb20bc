#!/bin/bash
# step.sh PROGRAM [ARGUMENT...]: runs the launcher on one node of the allocation, its output copied to a file of that node.
set -euo pipefail

# The node's file is made new, or there is none: who shares the folder could put a link to somewhere else in its place.
output=$OPSCTL_ATTEMPT_FOLDER/$SLURMD_NODENAME.out
set -C
if [[ -e $output || -L $output ]] || ! { exec {copy}> "$output"; } 2> /dev/null; then
    echo "cannot make $output, so this node's output is in the job's alone" >&2
    exec {copy}> /dev/null
fi
set +C

# Launcher: it gets the signals itself. This shell and tee outlive them, to carry its last words and its exit status.
trap : TERM INT USR1
"$@" 2>&1 {copy}>&- | (
    trap '' TERM INT USR1
    exec tee -a -- "/dev/fd/$copy"
)
