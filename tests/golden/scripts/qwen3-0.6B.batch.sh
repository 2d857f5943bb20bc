#!/bin/bash
#SBATCH --job-name=qwen3-0.6B
#SBATCH --comment='opsctl run=5eed5eed5eed5eed submit=70ce70ce70ce'
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gres=gpu:4
#SBATCH --time=20:00:00
#SBATCH --array=1-3%1
#SBATCH --kill-on-invalid-dep=no
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@600
#SBATCH --chdir=/runs/here
#SBATCH --output=/runs/here/output/logs/slurm/%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --export=NONE

# Every task of the chain runs this script, and trains the newest revision at its start.
set -euo pipefail

# Environment: the submitter's shell has no effect (--export=NONE). If slurmd cannot read the login environment,
# these are missing, and srun would pass NONE to the ranks.
umask 0007
export PATH HOME=~ USER="${USER:-$(id -un)}"
export SLURM_EXPORT_ENV=ALL

# Job
exec /env/bin/python -P -m opsctl job run \
    --output-folder /runs/here/output \
    --submitted-at 2022-03-11T11:42:00+00:00
