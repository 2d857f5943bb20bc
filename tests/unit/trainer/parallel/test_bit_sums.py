"""Sums of bit patterns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.parallel.bit_sums import bits_of, bits_of_part

SIZES = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float64: torch.int64}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200_000), st.sampled_from(list(SIZES)), st.data())
def test_every_single_flipped_bit_changes_the_sum(count: int, dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    at = data.draw(st.integers(0, count - 1))
    bit = data.draw(st.integers(0, 8 * tensor.element_size() - 2))
    before, part = int(bits_of(tensor)), int(bits_of_part(tensor, 5))
    tensor.view(SIZES[dtype])[at] ^= 1 << bit
    assert int(bits_of(tensor)) != before
    assert int(bits_of_part(tensor, 5)) != part


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150_000), st.data())
def test_parts_of_a_whole_add_up_wherever_they_are_cut(count: int, data: st.DataObject) -> None:
    whole = torch.randn(count, generator=torch.Generator().manual_seed(count))
    cut = data.draw(st.integers(0, count))
    parts = bits_of_part(whole[:cut], 0) + bits_of_part(whole[cut:], cut)
    assert int(parts) == int(bits_of_part(whole, 0))


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
