#!/bin/bash
#SBATCH --job-name=opsctl-checkpoints-backup
#SBATCH --comment='opsctl errand=e5eed5ed job=2'
#SBATCH --partition=prepost
#SBATCH --account=abc@cpu
#SBATCH --time=10:00:00
#SBATCH --nice=100
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --chdir=/
#SBATCH --output='/home/o'"'"'neil/100%% "mine" $HOME/output.txt'
#SBATCH --open-mode=append
#SBATCH --export=ALL

# One job of a long command: it ends the command before its limit, and submits the next job to continue it.
set -euo pipefail
# Ignore Slurm's warning until the command runs.
trap '' USR1

# Environment: that of the submission, except for variables that Slurm's commands need.
unset SLURM_TIME_FORMAT SLURM_BITSTR_LEN LC_ALL
export LC_ALL=fr_FR.UTF-8

# Cluster
if [ -r /c/slurm.conf ]; then
    export SLURM_CONF=/c/slurm.conf
fi
export PATH='/opt/slurm 22/bin':"$PATH"
export LD_LIBRARY_PATH='/opt/slurm 22/lib'"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# Command
exec /env/bin/python -P -m opsctl jobs exec --errand e5eed5ed --number 2
