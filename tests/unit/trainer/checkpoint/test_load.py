"""Loading through DeepSpeed's engine, which has a reader of its own."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.trainer.checkpoint.test_read import Calls
from trainer.checkpoint.load import load_checkpoint
from trainer.formats.errors import CheckpointError


class UsualReader:
    """As DeepSpeed's."""

    def load(self, path: str, map_location: Any = None) -> Any:
        return torch.load(path, map_location=map_location, weights_only=False)


class ReadingEngine:
    """As DeepSpeed's: whatever it reads, its checkpoint engine reads."""

    def __init__(self) -> None:
        self.checkpoint_engine = UsualReader()

    def load_checkpoint(self, folder: str, tag: str, **_: Any) -> tuple[str, Any]:
        path = str(Path(folder) / tag / "mp_rank_00_model_states.pt")
        return path, self.checkpoint_engine.load(path, map_location="cpu")


def test_a_checkpoint_that_a_member_put_there_runs_nothing_as_whoever_trains_next(tmp_path: Path) -> None:
    ran, folder = tmp_path / "ran", tmp_path / "global_step3"
    folder.mkdir()
    torch.save({"module": Calls(os.system, f"touch {ran}")}, folder / "mp_rank_00_model_states.pt")
    engine: Any = ReadingEngine()
    found: Any = SimpleNamespace(folder=folder, manifest=SimpleNamespace(iteration=3))
    with pytest.raises(CheckpointError, match=r"global_step3 cannot be loaded: .* asks for posix\.system"):
        load_checkpoint(engine, found)
    assert not ran.exists()
    engine.checkpoint_engine.load(str(folder / "mp_rank_00_model_states.pt"))
    assert ran.exists(), "DeepSpeed's own reader is its own again, and runs it"
