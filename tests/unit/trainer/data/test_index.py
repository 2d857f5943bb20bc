"""The orders of samples built ahead: by a process of their own, for the run as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.cli import main
from opsctl.run.state.background_progress import PROGRESS_VARIABLE
from tests.printed_json import printed
from tests.tiny_run import write_run
from tests.unit.cli.called import go_into
from trainer.data import index_cache
from trainer.data.index import main as program
from trainer.formats.data.data_inspected import KeptIndex

OPTIONS = (
    *("--num-layers=2", "--hidden-size=32", "--num-attention-heads=4", "--seq-length=16", "--micro-batch-size=1"),
    *("--global-batch-size=4", "--train-samples=40", "--lr=1e-3", "--vocab-size=300", "--eval-iters=0"),
    "--split=100,0,0",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_run(tmp_path)
    return go_into(tmp_path, monkeypatch)


def indexed(capsys: pytest.CaptureFixture[str], *words: str) -> list[KeptIndex]:
    assert program(["--world-size=1", "--json", *words, "--", *OPTIONS, "--data-path", "data"]) == 0
    rows = printed("data index", capsys.readouterr().out)["indices"]
    return [KeptIndex(**row) for row in rows]


def test_what_is_there_is_said_and_left_alone_and_a_dry_run_builds_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (wanted,) = indexed(capsys, "--dry-run")
    assert (wanted.data, wanted.samples, wanted.state, wanted.listing) == (
        *(str(folder / "data"), 40, "to be built", None),
    )
    assert not (folder / "cache").exists()
    (built,) = indexed(capsys)
    assert built.state == "built" and built.listing is not None
    names = json.loads(Path(built.listing).read_text())["arrays"]
    files = [Path(built.listing.removesuffix(".json") + f"-{name}.npy") for name in names]
    assert sorted([*files, Path(built.listing)]) == sorted((folder / "cache").iterdir())
    before = [one.stat() for one in files]
    assert [one.state for words in ((), ("--dry-run",)) for one in indexed(capsys, *words)] == ["there", "there"]
    assert [one.stat() for one in files] == before


def test_one_whose_array_is_gone_is_built_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    indexed(capsys)
    (sample,) = (folder / "cache").glob("*-sample.npy")
    was = sample.read_bytes()
    sample.unlink()
    assert [one.state for one in indexed(capsys)] == ["built"]
    assert sample.read_bytes() == was


def test_where_nothing_can_be_kept_it_says_so_and_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cache").write_text("no folder")
    assert program(["--world-size=1", "--", *OPTIONS, "--data-path", "data"]) == 1
    said = capsys.readouterr()
    assert "40 samples" in said.out and "--data-cache-path" in said.err


def test_two_at_once_end_with_the_same_files_as_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second begins after the first has looked and before it has kept anything."""
    kept = index_cache.IndexCache._keep
    begun: list[dict[str, bytes]] = []

    def keep(self: index_cache.IndexCache, stem: str, text: str, arrays: index_cache.Arrays) -> None:
        if not begun:
            begun.append({})
            assert [one.state for one in indexed(capsys)] == ["built"]
            begun[0].update((one.name, one.read_bytes()) for one in (folder / "cache").iterdir())
        kept(self, stem, text, arrays)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index_cache.IndexCache, "_keep", keep)
        assert [one.state for one in indexed(capsys)] == ["built"]
    assert {one.name: one.read_bytes() for one in (folder / "cache").iterdir()} == begun[0]


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        (("--data-path", "nowhere"), 2, "nowhere"),
        (("--data-path", "data", "--no-such"), 2, "--no-such"),
        (("--data-path", "data", "--load", ".", "--load-step", "4"), 1, "global_step4"),
    ],
)
def test_what_the_training_would_refuse_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], code: int, why: str
) -> None:
    assert program(["--world-size=1", "--", *OPTIONS, *more]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("opsctl: ") and why in line


def test_the_command_builds_for_the_runs_own_lengths_and_layout_without_torch_and_tells_a_job(folder: Path) -> None:
    (folder / "torch.py").write_text("raise SystemExit('torch')")
    told = folder / "progress.json"
    environment = {**os.environ, "PYTHONPATH": ".", PROGRESS_VARIABLE: str(told)}
    ran = subprocess.run(
        [sys.executable, "-m", "opsctl", "data", "index", "--json"],
        capture_output=True, text=True, timeout=60, check=False, cwd=folder, env=environment,
    )  # fmt: skip
    (built,) = printed("data index", ran.stdout)["indices"]
    assert json.loads(told.read_text())["done"] == 1
    assert (built["samples"], built["state"], ran.returncode) == (4000, "built", 0), ran.stderr


def test_a_run_file_that_is_wrong_is_refused_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "data.bin").unlink()
    with pytest.raises(SystemExit) as stop:
        main(["data", "index"])
    assert stop.value.code == 2 and "data.bin" in capsys.readouterr().err
