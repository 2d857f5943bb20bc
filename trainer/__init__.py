"""A GPT trainer with tensor, pipeline and data parallelism; needs no opsctl: `torchrun -m trainer.pretrain_gpt --help`."""
