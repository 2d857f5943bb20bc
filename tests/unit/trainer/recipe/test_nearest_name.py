"""The known name closest to an unknown one."""

from __future__ import annotations

import pytest

from trainer.recipe.nearest_name import nearest_name
from trainer.recipe.options import BY_KEY


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("sequence_length", "seq_length"),
        ("num-layer", "num_layers"),
        ("hiden_size", "hidden_size"),
        ("weigth_decay", "weight_decay"),
        ("pipeline_parallel_size", "pipeline_model_parallel_size"),
    ],
)
def test_a_misspelled_name_leads_to_ours(wanted: str, meant: str) -> None:
    assert nearest_name(wanted, BY_KEY) == meant


@pytest.mark.parametrize("wanted", ["epochs", "colour", "x", ""])
def test_a_name_like_none_leads_nowhere(wanted: str) -> None:
    assert nearest_name(wanted, BY_KEY) is None
