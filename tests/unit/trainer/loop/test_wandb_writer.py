"""Curves in wandb's own files, written by its own package without a network and read back by it."""

from __future__ import annotations

import importlib
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.loop.steps import step_at
from tests.unit.trainer.loop.test_observers import options_with
from trainer.formats.distribution import install_command
from trainer.loop.tensorboard import Curves, WandbWriter, open_writers
from trainer.recipe.options import OptionsError


def points_in(folder: Path) -> list[dict[str, Any]]:
    """Return wandb's history of the only run in `folder`. Its file must fit in one block.

    It is framed as LevelDB's log: after 7 bytes of heading, of each record a checksum, its length and kind, then it.
    """
    wandbs: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")  # without types
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content, at, points = file.read_bytes(), 7, []
    assert len(content) < 32 * 1024
    while at < len(content):
        _, length, kind = struct.unpack_from("<IHB", content, at)
        assert kind == 1, "a whole record"
        record = wandbs.Record()
        record.ParseFromString(content[at + 7 : at + 7 + length])
        at += 7 + length
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            points.append({"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in items})
    return points


def test_points_over_iterations_are_in_wandbs_own_files_without_a_network_or_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    options = {"wandb_project": "p", "wandb_save_dir": str(tmp_path / "run")}
    curves = Curves(open_writers(options_with(**options)), options_with(**options), 1, 1, flops_per_sample=1.0)
    for iteration, loss in ((1, 4.0), (2, 2.5)):
        curves.after_step(step_at(iteration, loss=loss))
    curves.validation("EN", 2.25, step_at(2).progress)
    curves.close()
    points = points_in(tmp_path / "run")
    assert [point["lm-loss-training/lm loss"] for point in points] == [4.0, 2.5]
    assert [point["_step"] for point in points] == [1, 2]
    assert points[1]["lm-loss-validation/EN/lm loss validation"] == 2.25
    assert not any(" vs " in key for point in points for key in point)
    assert not (tmp_path / "home" / ".netrc").exists()


def test_what_is_missing_is_named_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(OptionsError, match=rf"\bwandb\b.*{re.escape(install_command('wandb'))}"):
        WandbWriter(options_with(wandb_project="p", wandb_save_dir=str(tmp_path)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(OptionsError, match=r"--wandb-mode online.*WANDB_API_KEY"):
        WandbWriter(options_with(wandb_project="p", wandb_save_dir=str(tmp_path), wandb_mode="online"))
    with pytest.raises(OptionsError, match=r"--wandb-project.*--wandb-save-dir"):
        WandbWriter(options_with(wandb_project="p"))
