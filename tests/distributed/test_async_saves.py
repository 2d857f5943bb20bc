"""Saving while the training goes on: it trains the same, what counts is whole, and no failure passes in silence."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import Seen, run_training, write_corpus
from trainer.formats.checkpoint.manifest import fault_of

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def saving(corpus: str, folder: Path, **more: Any) -> dict[str, Any]:
    places = {"save": str(folder / "checkpoints"), "load": str(folder / "checkpoints")}
    files = {name: str(folder / name.removesuffix("_path")) for name in ("save_request_path", "kill_switch_path")}
    return {"data_path": [corpus], "train_iters": 8, "async_save": True, **places, **files, **more}


def run_with_a_slow_disk(
    options: dict[str, Any], held: str, gate: str, disturb: dict[str, Any] | None = None, waits: int | None = None
) -> Seen:
    """Train. The last rank waits before its first file of the save `held` until the file `gate` is removed.

    waits: number of printed "waiting" lines that end the wait as well.
    """
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    waited: list[bool] = []

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and is_last and f"/.tmp-{held}." in str(args[0]) and not waited:
            waited.append(True)
            until = time.monotonic() + 60
            printed: Any = sys.stdout
            while Path(gate).exists() and time.monotonic() < until:
                if waits is not None and printed.getvalue().count("waiting ") >= waits:
                    break
                time.sleep(0.01)

    sys.addaudithook(watch)
    return run_training(options, disturb)


def said(seen: Seen) -> list[str]:
    """Return the log's saves and iterations, in a word each."""
    words = {
        r"saving checkpoint at iteration +(\d+)": "begins",
        r"  successfully saved checkpoint at iteration +(\d+)": "saved",
        r"  failed to save checkpoint at iteration +(\d+)": "failed",
        r" iteration +(\d+)/": "trained",
        r"waiting .*?iteration (\d+)": "waits",
        r"time \(ms\) \| save-checkpoint: \S+ \| save-checkpoint-(background)": "times",
    }
    matches = [(word, re.match(pattern, line)) for line in seen.output.splitlines() for pattern, word in words.items()]
    return [f"{word} {match[1]}" for word, match in matches if match]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith((".py", ".lock")))


def test_the_training_goes_on_while_the_slowest_rank_writes_and_what_it_writes_is_of_when_it_began(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    whole = pool.run(2, run_training, {"data_path": [corpus], "train_iters": 8, "bf16": True})
    options = saving(corpus, tmp_path, bf16=True, save_interval=3)
    opened = {"after_step": 5, "remove": str(gate)}
    ranks = pool.run(2, run_with_a_slow_disk, options, "global_step3", str(gate), opened)
    assert [rank.status for rank in ranks] == [0, 0], ranks[0].errors
    assert [rank.losses for rank in ranks] == [rank.losses for rank in whole]
    last = said(ranks[1])
    assert last.index("times background") > last.index("trained 5")
    root = tmp_path / "checkpoints"
    assert names(root) == ["global_step3", "global_step6", "global_step8", "latest"]
    assert {fault_of(root / name) for name in names(root)[:3]} == {None}
    (root / "latest").write_text("global_step3")
    again = pool.run(2, run_training, saving(corpus, tmp_path, bf16=True))
    assert [rank.losses for rank in again] == [rank.losses[3:] for rank in whole]


def test_leaving_waits_for_the_save_under_way_and_then_saves_what_is_newer(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    options = saving(corpus, tmp_path, save_interval=2)
    leave = {"after_step": 3, "touch": str(tmp_path / "kill_switch")}
    (seen,) = pool.run(1, run_with_a_slow_disk, options, "global_step2", str(gate), leave, 1)
    assert seen.status == 0, seen.errors
    trained = ["trained 1", "trained 2", "begins 2", "trained 3"]
    assert said(seen) == [*trained, "waits 2", "saved 2", "times background", "begins 3", "saved 3"]
    assert names(tmp_path / "checkpoints") == ["global_step2", "global_step3", "latest"]


def test_leaving_for_iterations_in_vain_finishes_the_save_under_way_and_saves_nothing_newer(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """The save of iteration 2 is held up until the training that learns nothing any more waits for it."""
    gate = tmp_path / "gate"
    gate.touch()
    options = saving(corpus, tmp_path, save_interval=2, max_skipped_iterations=1)
    in_vain = {"after_step": 3, "loss": math.nan}
    (seen,) = pool.run(1, run_with_a_slow_disk, options, "global_step2", str(gate), in_vain, 1)
    assert seen.status == 0, seen.errors
    assert said(seen) == ["trained 1", "trained 2", "begins 2", "trained 3", "waits 2", "saved 2", "times background"]
    assert "exiting program after 1 skipped or nan iterations" in seen.output
    assert names(tmp_path / "checkpoints") == ["global_step2", "latest"]


def test_the_kill_switch_is_heard_while_a_save_that_is_due_waits_for_another(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """The switch is there when iteration 4 is to be saved, and the save of 2 is still held up: 4 is not begun twice."""
    gate = tmp_path / "gate"
    gate.touch()
    options = saving(corpus, tmp_path, save_interval=2)
    leave = {"after_step": 4, "touch": str(tmp_path / "kill_switch")}
    (seen,) = pool.run(1, run_with_a_slow_disk, options, "global_step2", str(gate), leave, 2)
    assert seen.status == 0, seen.errors
    about = [word for word in said(seen) if not word.startswith("trained")]
    assert about == ["begins 2", "waits 2", "waits 2", "saved 2", "times background", "begins 4", "saved 4"]
    assert seen.output.index("Detected kill switch") > seen.output.index("waiting")


def test_who_asks_for_a_save_is_answered_once_it_is_published(pool: Pool, corpus: str, tmp_path: Path) -> None:
    asking = {"after_step": 2, "append": (str(tmp_path / "save_request"), json.dumps({"id": "one"}))}
    (seen,) = pool.run(1, run_training, saving(corpus, tmp_path), asking)
    assert "saved 2" in said(seen)
    answer = json.loads((tmp_path / "saved.json").read_text())
    assert (answer["id"], answer["iteration"], answer["problem"]) == ("one", 2, "")


WIDER = {"hidden_size": 48, "num_attention_heads": 4}


@pytest.fixture
def small_disk(pool: Pool, corpus: str, tmp_path: Path) -> Iterator[Path]:
    """Return a separate file system with room for three checkpoints; `ballast` fills that of two."""
    pool.run(1, run_training, {**saving(corpus, tmp_path), **WIDER, "train_iters": 1})
    one = sum(path.stat().st_size for path in (tmp_path / "checkpoints").rglob("*"))
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={3.6 * one:.0f}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(folder)], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    (folder / "ballast").write_bytes(bytes(2 * one))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def run_until_somebody_makes_room(options: dict[str, Any], ballast: str | None) -> Seen:
    """Train; what fills the disk goes as the save of iteration 6 makes its folder."""

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if ballast is not None and event == "os.mkdir" and "/.tmp-global_step6." in str(args[0]):
            Path(ballast).unlink()

    sys.addaudithook(watch)
    return run_training(options)


@pytest.mark.parametrize("is_cleared", [True, False], ids=["is cleared", "stays full"])
def test_a_disk_that_fills_while_a_save_is_written_is_one_line_and_the_next_save_waits(
    pool: Pool, corpus: str, small_disk: Path, is_cleared: bool
) -> None:
    options = {**saving(corpus, small_disk, save_interval=2), **WIDER}
    ballast = str(small_disk / "ballast") if is_cleared else None
    (seen,) = pool.run(1, run_until_somebody_makes_room, options, ballast)
    root = small_disk / "checkpoints"
    words = [word for word in said(seen) if word.split()[0] in ("begins", "saved", "failed")]
    (line,) = [one for one in seen.output.splitlines() if "failed to save" in one]
    assert f"iteration       4 to {root}: " in line and f"{root}/.tmp-global_step4." in line
    assert "No space left" in line
    if is_cleared:
        assert (seen.status, len(seen.losses), seen.errors) == (0, 8, "")
        assert words[:6] == ["begins 2", "saved 2", "begins 4", "failed 4", "begins 6", "saved 6"]
        assert said(seen)[said(seen).index("begins 6") + 1] == "saved 6"  # nothing was trained in between
        assert names(root) == ["global_step2", "global_step6", "global_step8", "latest"]
    else:
        assert (seen.status, len(seen.losses)) == (1, 6)
        assert words == ["begins 2", "saved 2", "begins 4", "failed 4", "begins 6"]
        assert seen.errors.count("\n") == 1 and "No space left" in seen.errors
        assert names(root) == ["global_step2", "latest"]
    assert {fault_of(one) for one in root.glob("global_step*")} == {None}
