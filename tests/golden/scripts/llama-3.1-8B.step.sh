#!/bin/bash
# step.sh PROGRAM [ARGUMENT...]: runs the launcher on one node of the allocation, and copies its output to the node's file.
set -euo pipefail

# Create the node's file new: a group member could have put a link to another file in its place.
output=$OPSCTL_ATTEMPT_FOLDER/$SLURMD_NODENAME.out
set -C
if [[ -e $output || -L $output ]] || ! { exec {copy}> "$output"; } 2> /dev/null; then
    echo "cannot create $output, so this node's output is only in the job's output" >&2
    exec {copy}> /dev/null
fi
set +C

# Launcher: it receives signals itself. This shell and tee survive them, to pass on its last output and exit status.
trap : TERM INT USR1
"$@" 2>&1 {copy}>&- | (
    trap '' TERM INT USR1
    exec tee -a -- "/dev/fd/$copy"
)
