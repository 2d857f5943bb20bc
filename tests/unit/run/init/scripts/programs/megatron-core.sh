#!/bin/bash
#SBATCH --job-name=mcore-7b
#SBATCH --nodes=8
#SBATCH --gres=gpu:8
#SBATCH --ntasks-per-node=1
#SBATCH --time=1-12:00:00
#SBATCH --array=1-20%1

export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FUSED_ATTN=1

REPO=/proj/llm/Megatron-LM
SAVE=/proj/llm/ckpt/7b
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)
MASTER_PORT=6000

DIST=(
    --nproc_per_node 8
    --nnodes $SLURM_NNODES
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
    --node_rank $SLURM_NODEID
)
MODEL=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --swiglu
    --transformer-impl transformer_engine
)
TRAIN=(
    --micro-batch-size 1
    --global-batch-size 1024
    --train-iters 250000
    --lr 3e-4
    --min-lr 3e-5
    --lr-decay-style cosine
    --bf16
    --use-distributed-optimizer
    # --recompute-activations
)
PARALLEL=(
    --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 2
    --sequence-parallel
)
DATA=(
    --data-path 0.6 /proj/llm/data/web_text_document 0.4 /proj/llm/data/code_text_document
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model /proj/llm/tokenizer
    --split 998,1,1
)
OUTPUT=(
    --save $SAVE
    --load $SAVE
    --save-interval 500
    --eval-interval 1000
    --eval-iters 10
    --log-interval 10
    --exit-duration-in-mins 2100
    --exit-signal-handler
    --tensorboard-dir $SAVE/tb
)
if [ -n "${WANDB_PROJECT}" ]; then
    OUTPUT+=(--wandb-project ${WANDB_PROJECT})
fi

cd $REPO
srun --container-image=/proj/images/pytorch-24.10.sqsh --container-mounts=/proj:/proj \
    torchrun ${DIST[@]} pretrain_gpt.py ${MODEL[@]} ${TRAIN[@]} ${PARALLEL[@]} ${DATA[@]} ${OUTPUT[@]}
