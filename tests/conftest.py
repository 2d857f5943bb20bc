"""Tiers: tests/cluster needs a real Slurm, tests/distributed several ranks.

Each tier stays on one worker, so that its parts start once.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

TIERS = ("cluster", "distributed")


# How long one example takes says nothing on a machine with other work.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    # A shell that starts us in the background has SIGINT ignored, and so would every program that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(here).parts[0]
        if tier in TIERS:
            item.add_marker(tier)
            item.add_marker(pytest.mark.xdist_group(tier))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        try:
            import torch
        except ImportError:
            pytest.skip("needs torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device, and there is none here")
