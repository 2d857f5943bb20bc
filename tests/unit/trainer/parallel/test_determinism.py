"""Environment variables that conflict with --deterministic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from trainer.parallel.determinism import be_deterministic
from trainer.recipe.options import OptionsError


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    """Restore torch's choice of operations after the test."""
    memory: Any = torch.utils.deterministic
    cudnn: Any = torch.backends.cudnn
    before = memory.fill_uninitialized_memory, cudnn.deterministic, cudnn.benchmark
    attention = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.use_deterministic_algorithms(False)
    memory.fill_uninitialized_memory, cudnn.deterministic, cudnn.benchmark = before
    torch.backends.cuda.enable_cudnn_sdp(attention)


@pytest.mark.usefixtures("torch_as_before")
@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("CUBLAS_WORKSPACE_CONFIG", ":16:8", True),
        ("CUBLAS_WORKSPACE_CONFIG", ":0:0", False),
        ("NCCL_ALGO", "Ring", True),
        ("NCCL_ALGO", "^nvls", True),
        ("NCCL_ALGO", "Ring,NVLS", False),
    ],
)
def test_an_environment_that_says_the_contrary_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, allowed: bool
) -> None:
    for name in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO"):
        monkeypatch.setenv(name, "")  # so that what the call sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, value)
    if allowed:
        be_deterministic()
        assert os.environ[variable] == value
        assert torch.are_deterministic_algorithms_enabled()
    else:
        with pytest.raises(OptionsError, match=f"{variable}={value}"):
            be_deterministic()
        assert not torch.are_deterministic_algorithms_enabled()
