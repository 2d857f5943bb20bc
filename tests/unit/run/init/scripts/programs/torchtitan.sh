#!/usr/bin/bash
#SBATCH --job-name=titan
#SBATCH --nodes=16
#SBATCH --ntasks=16
#SBATCH --gpus-per-task=8
#SBATCH --cpus-per-task=96
#SBATCH --time=20:00:00
#SBATCH --partition=train

set -ex
NGPU=${NGPU:-"8"}
LOG_RANK=${LOG_RANK:-0}
MODULE=${MODULE:-"llama3"}
CONFIG=${CONFIG:-"llama3_8b"}

export PYTORCH_ALLOC_CONF="expandable_segments:True"
export LD_LIBRARY_PATH=/opt/aws-ofi-nccl/lib:$LD_LIBRARY_PATH
overrides=""
if [ $# -ne 0 ]; then
    overrides="$*"
fi

head=$(srun -N1 -n1 -w "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)" hostname)

source .venv/bin/activate
srun torchrun --nnodes=16 --nproc_per_node=${NGPU} --rdzv_id 101 --rdzv_backend c10d \
    --rdzv_endpoint="$head:29500" --local-ranks-filter ${LOG_RANK} --role rank --tee 3 \
    -m torchtitan.train --module ${MODULE} --config ${CONFIG} \
    --training.steps 60000 --checkpoint.enable --checkpoint.interval 500 --dump-folder outputs/8b $overrides
