"""Sums of bit patterns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.parallel.bit_sums import bits_of

SIZES = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float64: torch.int64}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200_000), st.sampled_from(list(SIZES)), st.data())
def test_every_single_flipped_bit_changes_the_sum(count: int, dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    at = data.draw(st.integers(0, count - 1))
    bit = data.draw(st.integers(0, 8 * tensor.element_size() - 2))
    before = int(bits_of(tensor))
    tensor.view(SIZES[dtype])[at] ^= 1 << bit
    assert int(bits_of(tensor)) != before


def test_places_count() -> None:
    one = torch.arange(100_000, dtype=torch.float32)
    assert int(bits_of(one)) != int(bits_of(one.flip(0)))
    swapped = one.clone()
    swapped[[3, 70_001]] = swapped[[70_001, 3]]
    assert int(bits_of(one)) != int(bits_of(swapped))


@pytest.mark.parametrize("dtype", list(SIZES))
def test_a_tensor_of_any_shape_and_nothing_at_all_have_sums(dtype: torch.dtype) -> None:
    tensor = torch.randn(7, 3).to(dtype)
    assert int(bits_of(tensor.t())) == int(bits_of(tensor.t().contiguous()))
    assert int(bits_of(tensor[:0])) == 0


@pytest.mark.parametrize("dtype", list(SIZES))
def test_where_in_a_buffer_a_tensor_begins_makes_no_difference(dtype: torch.dtype) -> None:
    buffer = torch.randn(150_003).to(dtype)
    for first in range(1, 5):
        part = buffer[first : first + 140_001]
        assert int(bits_of(part)) == int(bits_of(part.clone()))
