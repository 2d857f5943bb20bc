#!/bin/bash
# step.sh PROGRAM [ARGUMENT...]: runs the launcher on one node of the allocation, its output copied to a file of that node.
set -euo pipefail

# Variables
export DS_ACCELERATOR=cpu
export GLOO_SOCKET_IFNAME=lo
export OMP_NUM_THREADS=1

# Launcher: it gets the signals itself. This shell and tee outlive them, to carry its last words and its exit status.
trap : TERM INT USR1
"$@" 2>&1 | (
    trap '' TERM INT USR1
    exec tee -a -- "$OPSCTL_ATTEMPT_FOLDER/$SLURMD_NODENAME.out"
)
