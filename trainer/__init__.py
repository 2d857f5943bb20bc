"""A GPT trainer with tensor, pipeline and data parallelism, without opsctl too: torchrun -m trainer.pretrain_gpt."""
