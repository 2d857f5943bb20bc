"""A fixture for all tests of these kernels: uninitialised memory is NaN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Make torch fill empty tensors, outputs and scratch, with NaN and the largest integers."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)
