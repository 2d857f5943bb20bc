#!/usr/bin/env bash
# Started by hand on each node: no Slurm in it.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PATH=/opt/lm/bin:$PATH
export MASTER_ADDR=localhost
SIZE=${1:-7b}
NUM_NODES=${NUM_NODES:-2}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -z "$MICRO" ] && MICRO=4

case $SIZE in
    7b|8b) LAYERS=32; HIDDEN=4096; HEADS=32 ;;
    13b)   LAYERS=40; HIDDEN=5120; HEADS=40 ;;
    *) echo "no such size"; exit 1 ;;
esac
for step in $STEPS; do LAST=$step; done

LAUNCH=(--nproc_per_node 8 --nnodes $NUM_NODES --master_port 6000)
MODEL_ARGS=(
    --num-layers $LAYERS        # of the size
    --hidden-size "$HIDDEN"
    --num-attention-heads $HEADS
    --seq-length 4096
    --position-embedding-type rope
    --normalization RMSNorm
    --disable-bias-linear
)
MODEL_ARGS+=(--swiglu)
TRAINING_ARGS=(
    --micro-batch-size $MICRO --global-batch-size 256
    --train-iters 5000 --lr 3e-4 --bf16
    --train-range-to-skip 10 20 ${MORE_SKIPPED}
)
DATA_ARGS=(
    --data-path 0.7 first_text_document 0.3 $DATA_ROOT/second_text_document
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path ./tokenizer
)
torchrun ${LAUNCH[@]} pretrain_gpt.py "${MODEL_ARGS[@]}" ${TRAINING_ARGS[@]} ${DATA_ARGS[@]} \
    --save-interval ${SAVE_EVERY} \
    --eval-iters $LAST \
    --lr-warmup-iters $(python warm.py) \
    $EXTRA_ARGS
