"""Tests of drawing, which `trainer.generation.texts` contains."""

from __future__ import annotations

import pytest
import torch

from trainer.formats.errors import CheckpointError
from trainer.generation.texts import next_token

LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.3, 0.2]))


def drawn(temperature: float, top_k: int, times: int = 1000) -> torch.Tensor:
    """Return the share of each token."""
    generator = torch.Generator().manual_seed(7)
    found = torch.tensor([next_token(LOGITS, temperature, top_k, generator) for _ in range(times)])
    return torch.bincount(found, minlength=4) / times


def test_without_a_temperature_the_most_likely_token_comes_each_time() -> None:
    assert drawn(0, 0, 10).tolist() == drawn(1, 1, 10).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("temperature", "top_k", "shares"),
    [
        (1.0, 0, [0.1, 0.4, 0.3, 0.2]),
        (1.0, 2, [0, 0.4 / 0.7, 0.3 / 0.7, 0]),
        # p^2 / (0.01 + 0.16 + 0.09 + 0.04)
        (0.5, 9, [0.01 / 0.3, 0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3]),
    ],
)
def test_tokens_come_as_often_as_softmax_says(temperature: float, top_k: int, shares: list[float]) -> None:
    # Five standard deviations of a share of 1000 draws, at most.
    assert drawn(temperature, top_k).tolist() == pytest.approx(shares, abs=0.08)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_model_that_has_diverged_says_no_token(temperature: float) -> None:
    logits = torch.tensor([1.0, float("nan"), 2.0])
    with pytest.raises(CheckpointError, match="logits"):
        next_token(logits, temperature, 0, torch.Generator())


def test_the_smallest_temperature_there_is_takes_the_most_likely() -> None:
    assert next_token(LOGITS + 300, 1e-320, 0, torch.Generator().manual_seed(7)) == 1
