"""Recomputation, by each of its option names."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.recipe.model_options import asks_to_recompute, recomputation_errors, recomputed
from trainer.recipe.options import Options


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, "none"),
        ({"checkpoint_activations": True}, "block"),
        ({"deepspeed_activation_checkpointing": True}, "block"),
        ({"recompute": "none"}, "none"),
        ({"recompute": "attention"}, "attention"),
        ({"recompute": "block", "checkpoint_activations": True, "partition_activations": True}, "block"),
    ],
    ids=str,
)
def test_older_names_mean_blocks(given: dict[str, Any], meant: str) -> None:
    options = Options(given)
    assert recomputed(options) == meant
    assert recomputation_errors(options) == []


@pytest.mark.parametrize(
    ("arguments", "asks"),
    [
        (["--lr", "1e-3", "--recompute", "attention"], True),
        (["--recompute=block"], True),
        (["--checkpoint-activations"], True),
        (["--data-path", "recompute", "--partition-activations"], False),
        ([], False),
    ],
)
def test_a_command_line_is_known_to_recompute_before_it_is_read(arguments: list[str], asks: bool) -> None:
    assert asks_to_recompute(arguments) == asks
