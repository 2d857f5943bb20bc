"""Conversion to and from folders of Hugging Face transformers, tensor by tensor."""

from trainer.core.preload import set_process_defaults

set_process_defaults(1)  # before the first of these modules imports torch, and with it DeepSpeed
