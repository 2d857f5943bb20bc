"""The Megatron-DeepSpeed style trainer. Usable without opsctl: `torchrun -m trainer.pretrain_gpt --num-layers ...`."""
