"""The known name closest to an unknown one."""

from __future__ import annotations

import pytest

from trainer.recipe.nearest_name import nearest_name
from trainer.recipe.options import BY_KEY


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("learning_rate", "lr"),
        ("min_learning_rate", "min_lr"),
        ("learning-rate-decay-style", "lr_decay_style"),
        ("warmup_steps", "lr_warmup_iters"),
        ("max_steps", "train_iters"),
        ("num_train_steps", "train_iters"),
        ("gradient_clipping", "clip_grad"),
        ("sequence_length", "seq_length"),
        ("context_length", "seq_length"),
        ("n_layer", "num_layers"),
        ("n_head", "num_attention_heads"),
        ("d_model", "hidden_size"),
        ("intermediate_size", "ffn_hidden_size"),
        ("tp", "tensor_model_parallel_size"),
        ("pipeline_parallel_size", "pipeline_model_parallel_size"),
        ("size_of_vocabulary", "vocab_size"),
        ("checkpoint_interval", "save_interval"),
        ("hiden_size", "hidden_size"),
        ("num_layer", "num_layers"),
        ("weigth_decay", "weight_decay"),
    ],
)
def test_a_name_of_other_programs_or_a_misspelled_one_leads_to_ours(wanted: str, meant: str) -> None:
    assert nearest_name(wanted, BY_KEY) == meant


@pytest.mark.parametrize("wanted", ["epochs", "colour", "x", ""])
def test_a_name_like_none_leads_nowhere(wanted: str) -> None:
    assert nearest_name(wanted, BY_KEY) is None
