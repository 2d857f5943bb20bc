#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:8
#SBATCH --time=1-00:00:00
#SBATCH --mail-type=END

source /etc/profile.d/modules.sh
module load cuda/12.1
source ~/miniconda3/etc/profile.d/conda.sh
conda activate factory

export NNODES=$SLURM_NNODES
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export MASTER_PORT=29500
export FORCE_TORCHRUN=1
export WANDB_PROJECT=factory

srun bash -c 'NODE_RANK=$SLURM_PROCID llamafactory-cli train conf/qwen_full_sft.yaml output_dir=/work/factory/qwen max_steps=3000'
