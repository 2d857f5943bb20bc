"""Reading a checkpoint's file without running what it asks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from trainer.checkpoint.into_engine import random_states
from trainer.checkpoint.stored_tensors import read_data


class Calls:
    """Pickled, it has its reader call a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_what_deepspeed_puts_beside_the_optimizers_states_comes_back(tmp_path: Path) -> None:
    state = {
        "loss_scaler": LossScaler(2.0),
        "dynamic": DynamicLossScaler(65536.0, 2.0, 1000, 1.0, 2, False, dtype=torch.half),
        "zero_stage": ZeroStageEnum.optimizer_states,
        "slices": [{"weight": fragment_address(numel=3, start=4)}],
        "random": random_states(),
        "weights": {"one": torch.arange(3.0, dtype=torch.bfloat16)},
    }
    torch.save(state, tmp_path / "state.pt")
    found = read_data(str(tmp_path / "state.pt"), "cpu")
    assert found["loss_scaler"].cur_scale == 2.0 and found["dynamic"].dtype == torch.half
    assert found["zero_stage"] is ZeroStageEnum.optimizer_states
    assert found["slices"] == state["slices"]
    assert found["random"].keys() == random_states().keys()
    assert torch.equal(found["weights"]["one"], state["weights"]["one"])


@pytest.mark.parametrize("old_format", [False, True])
def test_a_file_that_would_have_its_reader_run_something_is_refused_by_name(tmp_path: Path, old_format: bool) -> None:
    ran, path = tmp_path / "ran", tmp_path / "mp_rank_00_model_states.pt"
    for evil in (
        Calls(os.system, f"touch {ran}"),
        Calls(eval, f"open({str(ran)!r}, 'w')"),
        Calls(getattr, LossScaler, "__init__"),
        Calls(getattr, ZeroStageEnum, "__class__"),
    ):
        torch.save({"module": evil}, path, _use_new_zipfile_serialization=not old_format)
        with pytest.raises(ValueError, match=r"mp_rank_00_model_states\.pt"):
            read_data(str(path))
        assert not ran.exists()
