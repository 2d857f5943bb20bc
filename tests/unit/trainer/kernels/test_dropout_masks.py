"""Dropout's masks, beside SplitMix64 in Python's whole numbers."""

from __future__ import annotations

import pytest
import torch

from trainer.kernels.residual import drop, keeping_masks, kept_scale, lowest_kept_level

CPU = torch.device("cpu")
_64_BITS = (1 << 64) - 1


def splitmix64(seed: int, number: int) -> int:
    """Return the sequence's number `number`, from 0."""
    bits = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _64_BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _64_BITS
    return bits ^ bits >> 31


def is_kept(seed: int, element: int, probability: float) -> bool:
    level = splitmix64(seed, element // 4) >> (16 * (element % 4)) & 0xFFFF
    return level - (1 << 16) * (level >= 1 << 15) >= round(probability * (1 << 16)) - (1 << 15)


def test_the_sequence_is_splitmix64() -> None:
    # The published first numbers from seed 1234567.
    assert [splitmix64(1234567, number) for number in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_mask_is_what_the_sequence_of_its_seed_says(probability: float) -> None:
    seeds, shape = [0, 5, (1 << 63) - 1], (7, 13)
    masks = keeping_masks(seeds, shape, probability, CPU)
    assert masks.shape == (3, 7, 13) and masks.dtype == torch.bool
    for seed, mask in zip(seeds, masks.flatten(1).tolist(), strict=True):
        assert mask == [is_kept(seed, element, probability) for element in range(7 * 13)]


@pytest.mark.parametrize(
    "shape", [(8, 4), (6, 7), (3, 1)]
)  # slices that begin with a number's first bits, or within it
def test_slices_of_a_mask_are_drawn_alone(shape: tuple[int, int]) -> None:
    whole = keeping_masks([3, 4], (shape[0] * 3, shape[1]), 0.3, CPU)
    slices = [keeping_masks([3, 4], shape, 0.3, CPU, (which, 3)) for which in range(3)]
    assert torch.equal(torch.cat(slices, dim=1), whole)


def test_neighbouring_values_are_dropped_independently() -> None:
    mask = keeping_masks([1, 2, 3, 4], (1 << 16,), 0.5, CPU).double() - 0.5
    for distance in (1, 2, 3, 4, 5, 8):
        together = (mask[:, distance:] * mask[:, :-distance]).mean().item() * 4
        assert abs(together) < 5 / (4 * (1 << 16)) ** 0.5, distance


def test_masks_of_neighbouring_seeds_are_independent() -> None:
    mask = keeping_masks(list(range(64)), (1 << 12,), 0.5, CPU).double() - 0.5
    together = (mask[1:] * mask[:-1]).mean().item() * 4
    assert abs(together) < 5 / (63 * (1 << 12)) ** 0.5


@pytest.mark.parametrize("probability", [1e-9, 0.1, 0.5, 1 - 1e-9])
def test_every_probability_drops_something_and_keeps_something(probability: float) -> None:
    assert -(1 << 15) < lowest_kept_level(probability) < 1 << 15
    assert 1 < kept_scale(probability) <= 1 << 16


def test_what_is_kept_is_scaled_and_the_gradient_has_the_same_mask() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 5) > 0.3
    assert torch.equal(drop(x, mask, 0.25), torch.where(mask, x * (4 / 3), 0))
    assert torch.autograd.gradcheck(lambda one: drop(one, mask, 0.25), (x,))
