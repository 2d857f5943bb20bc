#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:8
#SBATCH --time=2-00:00:00
#SBATCH --partition=batch
#SBATCH --job-name=moe

export PATH=/opt/pdsh/bin:$PATH
export CUDA_DEVICE_MAX_CONNECTIONS=1
. /shared/envs/moe/activate.sh

HOSTS=hostfile.$SLURM_JOB_ID
rm -f $HOSTS
for node in $(scontrol show hostnames $SLURM_JOB_NODELIST); do
    echo "$node slots=8" >> $HOSTS
done

MODEL_DIM=2048
EXPERTS=16
STEPS=50000

deepspeed --hostfile $HOSTS --master_port 29600 --launcher pdsh \
    src/train_moe.py \
    --dim $MODEL_DIM --experts $EXPERTS \
    --total_steps $STEPS \
    --checkpoint_dir /work/moe/ckpt \
    --deepspeed_config conf/zero1.json
