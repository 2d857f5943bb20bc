#!/bin/bash
# step.sh PROGRAM [ARGUMENT...]: runs the launcher on one node of the allocation, its output copied to a file of that node.
set -euo pipefail

# Environment script: as careless as such scripts are, a variable not set or a last test that fails is no reason to stop.
if [[ ! -r /six_ALL_CCFRWORK/code/tr11-176B-ml/bigscience/train/tr11-176B-ml/start-tr11-176B-ml ]]; then
    echo 'cannot read the environment script /six_ALL_CCFRWORK/code/tr11-176B-ml/bigscience/train/tr11-176B-ml/start-tr11-176B-ml' "on $SLURMD_NODENAME" >&2
    exit 1
fi
set +eu
# shellcheck source=/dev/null
source /six_ALL_CCFRWORK/code/tr11-176B-ml/bigscience/train/tr11-176B-ml/start-tr11-176B-ml
set -eu

# Variables
export CUDA_LAUNCH_BLOCKING=1
export HF_DATASETS_CACHE=/six_ALL_CCFRWORK/datasets
export HF_DATASETS_OFFLINE=1
export HF_METRICS_CACHE=/six_ALL_CCFRWORK/metrics
export HF_MODULES_CACHE=/six_ALL_CCFRWORK/modules
export TORCHELASTIC_ERROR_FILE=/tmp/torch-elastic-error.json
export TRANSFORMERS_CACHE=/six_ALL_CCFRWORK/models
export TRANSFORMERS_OFFLINE=1

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
