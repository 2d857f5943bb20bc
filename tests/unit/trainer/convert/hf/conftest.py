"""Small models that transformers made, and a checkpoint of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOKENS = 61
Publish = Callable[..., Path]


def random_model(family: str, **changes: Any) -> Any:
    """Return a model of theirs whose every parameter, biases and LayerNorms too, is drawn."""
    import torch
    from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    own = {"bos_token_id": None, "eos_token_id": None, **changes}
    torch.manual_seed(1)
    model: Any
    if family == "bloom":
        sizes = {"vocab_size": TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4}
        model = BloomForCausalLM(BloomConfig(**{**sizes, **own}))
    elif family == "llama":
        sizes = {"vocab_size": TOKENS, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
        model = LlamaForCausalLM(LlamaConfig(**{**sizes, **own}))
    else:
        sizes = {"vocab_size": TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
        model = GPT2LMHeadModel(GPT2Config(**{**sizes, **own}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """`publish(family, dtype="float32", shard="5GB", **of_config)`: the folder that transformers saved."""

    def saved(family: str, dtype: str = "float32", shard: str = "5GB", **changes: Any) -> Path:
        import torch

        folder = tmp_path / "published"
        model = random_model(family, **changes).to(getattr(torch, dtype))
        model.save_pretrained(folder, max_shard_size=shard)
        return folder

    return saved
