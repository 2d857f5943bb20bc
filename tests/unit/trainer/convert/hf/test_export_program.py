"""The export program: which checkpoints are written, kept or refused, and no leftovers of failures."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.convert.hf.conftest import Publish
from tests.unit.trainer.convert.hf.test_round_trip import exported, imported, tensors_in
from trainer.convert.hf import export, export_program
from trainer.core.files import write_atomically

Checkpoints = Callable[..., Path]


@pytest.fixture
def checkpoints(publish: Publish, tmp_path: Path) -> Checkpoints:
    """`checkpoints(*steps, family="bloom")`: a folder with the same weights as checkpoints of several iterations."""

    def made(*steps: int, family: str = "bloom") -> Path:
        first = imported(publish(family), tmp_path / "imported") / "global_step0"
        root = tmp_path / "checkpoints"
        for step in steps:
            shutil.copytree(first, root / f"global_step{step}")
            manifest = json.loads((first / "manifest.json").read_text())
            counters = {"iteration": step, "consumed_train_samples": 8 * step, "loss": 2.5}
            write_atomically(root / f"global_step{step}" / "manifest.json", json.dumps({**manifest, **counters}))
        write_atomically(root / "latest", f"global_step{steps[-1]}")
        return root

    return made


def refused(capsys: pytest.CaptureFixture[str], words: list[str], code: int = 1) -> str:
    assert export_program.main(words) == code
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_without_a_step_it_is_the_latest(checkpoints: Checkpoints, tmp_path: Path) -> None:
    out = exported(checkpoints(10, 20), tmp_path / "out", "--name", "my | run")
    card = (out / "README.md").read_text()
    assert "# my _ run\n" in card and "| iteration | 20 |" in card and "| 2.5000 |" in card
    assert str(tmp_path) not in "".join(file.read_text() for file in out.iterdir() if file.suffix in (".md", ".json"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--step", "25"], 1, "global_step25 is not in .*: available are 10, 20, 30"),
        (["--tokenizer", "/nowhere\x1b[2J"], 1, r"no tokenizer at /nowhere\\x1b\[2J"),
    ],
)
def test_what_cannot_be_is_one_line(
    checkpoints: Checkpoints,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    root = checkpoints(10, 20, 30)
    capsys.readouterr()
    assert re.search(said, refused(capsys, [str(root), "--output", str(tmp_path / "out"), *words], code))
    assert not (tmp_path / "out").exists()


def test_an_incomplete_checkpoint_and_a_place_that_is_taken_are_refused(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = checkpoints(10, 20), tmp_path / "out"
    out.mkdir()
    words = [str(root), "--output", str(out)]
    capsys.readouterr()
    assert f"{out} " in refused(capsys, words)
    out.rmdir()
    (root / "global_step10" / "layer_01-model_00-model_states.pt").unlink()
    said = refused(capsys, [*words, "--step", "10"])
    assert "global_step10 is not complete" in said and "layer_01-model_00-model_states.pt is missing" in said
    assert not out.exists()


def test_a_dry_run_and_a_full_disk_write_nothing(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = checkpoints(10), tmp_path / "out"
    capsys.readouterr()
    exported(root, out, "--dry-run", "--json")
    (model,) = json.loads(capsys.readouterr().out)["exported"]
    assert (model["state"], out.exists()) == ("would be written", False)
    free = shutil.disk_usage(tmp_path)._replace(free=model["bytes"] - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: free)
    assert re.search(r"0\.0 GiB .*0\.0 GiB", refused(capsys, [str(root), "--output", str(out)]))
    assert not out.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "full")])
def test_an_interrupted_export_leaves_nothing(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    root, folder = checkpoints(10), tmp_path / "models"
    written: list[Path] = []

    def interrupted(into: Path, *rest: Any) -> Any:
        (into / "begun").touch()
        yield 1
        written.extend(into.iterdir())
        raise error

    monkeypatch.setattr(export, "write_tensors", interrupted)
    code = export_program.main([str(root), "--output", str(folder / "out")])
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert written and list(folder.iterdir()) == []


def test_a_type_that_cannot_hold_the_weights_is_refused_naming_one(
    checkpoints: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    root = checkpoints(10)
    file = root / "global_step10" / "layer_03-model_00-model_states.pt"
    weights = torch.load(file, weights_only=True)
    weights["mlp.dense_h_to_4h.weight"][0, 0] = 1e6
    torch.save(weights, file)
    manifest_file = root / "global_step10" / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    manifest["files"][file.name]["bytes"] = file.stat().st_size
    write_atomically(manifest_file, json.dumps(manifest))
    capsys.readouterr()
    said = refused(capsys, [str(root), "--output", str(tmp_path / "out"), "--dtype", "float16"])
    assert all(fact in said for fact in ("layers.0.mlp.dense_h_to_4h.weight", "1e+06", "float16", "65504"))
    assert not (tmp_path / "out").exists()
    exported(root, tmp_path / "out", "--dtype", "bfloat16")
    assert tensors_in(tmp_path / "out")["transformer.ln_f.bias"].dtype == torch.bfloat16


def test_weights_that_were_saved_without_fp32_ones_are_widened_to_the_same_numbers_and_that_is_said(
    publish: Publish, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = imported(publish("bloom", "bfloat16"), tmp_path / "checkpoints")
    capsys.readouterr()
    wide, usual = (
        (exported(root, tmp_path / name, "--json", *words), json.loads(capsys.readouterr().out)["exported"][0])
        for name, words in (("wide", ("--dtype", "float32")), ("usual", ()))
    )
    said = "saved without fp32 weights: those in bf16 are widened"
    assert said in wide[1]["notices"] and said not in usual[1]["notices"]
    theirs = tensors_in(usual[0])
    for name, tensor in tensors_in(wide[0]).items():
        assert tensor.dtype.itemsize == 4 and tensor.equal(theirs[name].float()), name
