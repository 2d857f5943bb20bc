#!/bin/bash
# step.sh PROGRAM [ARGUMENT...]: runs the launcher on one node of the allocation, and copies its output to the node's file.
set -euo pipefail

# Environment script: it may use undefined variables or end with a failed test, so neither stops this script.
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
