"""Having the same sums come out of the same numbers: what of torch, cuBLAS, cuDNN and NCCL could choose otherwise."""

from __future__ import annotations

import os

import torch

from trainer.recipe.options import OptionsError

# What cuBLAS takes for its workspace when its results shall be the same on every run (its documentation, and torch's).
_WORKSPACES = (":4096:8", ":16:8")
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
# NVLink's switches add in the order in which numbers arrive (nccl issue 1497); all other algorithms have an order.
_NO_SWITCH_SUMS = "^NVLS,NVLSTree"


def be_deterministic() -> None:
    """Switch it on for this process, before CUDA and NCCL begin. An operation that cannot then raises RuntimeError.

    Raises OptionsError where the environment says the contrary.
    """
    workspace = os.environ.setdefault(_WORKSPACE, _WORKSPACES[0])
    if workspace not in _WORKSPACES:
        allowed = " or ".join(_WORKSPACES)
        raise OptionsError(f"--deterministic with {_WORKSPACE}={workspace}: set it to {allowed}, or not at all")
    algorithms = os.environ.setdefault("NCCL_ALGO", _NO_SWITCH_SUMS)
    if "NVLS" in algorithms.upper() and not algorithms.startswith("^"):
        raise OptionsError(
            f"--deterministic with NCCL_ALGO={algorithms}: NVLS sums in the order of arrival; remove it from the list"
        )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it would only fill memory that is never read
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_cudnn_sdp(False)  # flash and memory-efficient attention follow torch's switch
