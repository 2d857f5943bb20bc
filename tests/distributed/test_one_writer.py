"""One training has one writer: a replaced one publishes nothing and stops, and `latest` never goes back."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import run_training, write_corpus
from trainer.checkpoint.destination import WRITER_LOCK
from trainer.formats.attempt.lease import LEASE_FILE, Holder, taken_line

pytestmark = pytest.mark.distributed

OVERTAKEN = (
    r"(?m)^\[Overtaken by another writer: job 8 of ben on x02 has taken the lease with number 2\. Exiting\] datetime: "
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def other_pool() -> Iterator[Pool]:
    """Ranks that run at the same time as those of `pool`."""
    ranks = Pool()
    ranks.run(1, os.getpid)  # its parent ends with the thread that starts it, so not in a test's own thread
    yield ranks
    ranks.close()


def taken(number: int) -> str:
    user = {1: "ada", 2: "ben"}[number]
    return taken_line(Holder(number, f"attempt-{number}", 6 + number, user, f"x0{number}")) + "\n"


def writing(corpus: str, folder: Path, number: int | None = None, **options: Any) -> dict[str, Any]:
    everything = {
        "data_path": [corpus],
        "train_iters": 6,
        "save": str(folder / "checkpoints"),
        "load": str(folder / "checkpoints"),
        "save_interval": 2,
        "exit_report_path": str(folder / f"exit-{number}.json"),
        **options,
    }
    return everything | ({"lease_path": str(folder / LEASE_FILE), "lease_number": number} if number else {})


def names(folder: Path) -> set[str]:
    beside = {WRITER_LOCK, "zero_to_fp32.py", "zero_to_torch.py"}
    return {path.name for path in (folder / "checkpoints").iterdir()} - beside


def test_an_overtaken_training_leaves_where_it_would_have_published_and_one_that_starts_at_once(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    (tmp_path / LEASE_FILE).write_text(taken(1))
    disturb = {"after_step": 3, "append": (str(tmp_path / LEASE_FILE), taken(2))}
    ranks = pool.run(2, run_training, writing(corpus, tmp_path, 1), disturb)
    assert [(rank.status, len(rank.losses), rank.errors) for rank in ranks] == [(0, 4, "")] * 2
    assert re.search(OVERTAKEN, ranks[0].output)
    assert "saved checkpoint at iteration       4" not in ranks[0].output
    report = {"reason": "overtaken", "iteration": 4, "consumed_train_samples": 32}
    assert json.loads((tmp_path / "exit-1.json").read_text()) == report
    assert names(tmp_path) == {"global_step2", "latest"}
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step2"

    ranks = pool.run(2, run_training, writing(corpus, tmp_path, 1))
    assert [(rank.status, rank.losses, rank.errors) for rank in ranks] == [(0, [], "")] * 2
    assert re.fullmatch(OVERTAKEN + r".*\n", ranks[0].output)
    assert json.loads((tmp_path / "exit-1.json").read_text())["reason"] == "overtaken"

    (successor,) = pool.run(
        1, run_training, {**writing(corpus, tmp_path, 2), "load": None, "save": None, "save_interval": None}
    )
    assert len(successor.losses) == 6, "the new holder continues"


def test_a_lease_that_cannot_be_read_costs_no_checkpoint(pool: Pool, corpus: str, tmp_path: Path) -> None:
    (seen,) = pool.run(1, run_training, writing(corpus, tmp_path, 1, train_iters=2))
    assert seen.status == 0
    assert str(tmp_path / LEASE_FILE) in seen.errors
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step2"


@pytest.mark.parametrize("leased", [True, False], ids=["with a lease", "without"])
def test_of_two_writers_the_one_behind_publishes_nothing_and_spoils_nothing(
    pool: Pool, other_pool: Pool, corpus: str, tmp_path: Path, leased: bool
) -> None:
    """The ranks of a killed job go on after the next job has taken over, passed them and is saving."""
    lease, left_behind = tmp_path / LEASE_FILE, tmp_path / "left behind"
    lease.write_text(taken(1))
    with ThreadPoolExecutor(1) as thread:
        try:
            disturb = {"after_step": 3, "wait": str(left_behind)}
            first = thread.submit(
                other_pool.run, 1, run_training, writing(corpus, tmp_path, 1 if leased else None), disturb
            )
            wait_for(left_behind)
            lease.write_text(taken(1) + taken(2))
            if not leased:  # as where the file system has no locks
                (tmp_path / "checkpoints" / WRITER_LOCK).unlink()
            (second,) = pool.run(1, run_training, writing(corpus, tmp_path, 2 if leased else None))
            assert second.status == 0, second.errors
            in_its_save = tmp_path / "checkpoints" / ".tmp-global_step8.of-the-other"
            in_its_save.mkdir()
            left_behind.unlink()
            (seen,) = first.result(timeout=60)
        finally:
            left_behind.unlink(missing_ok=True)
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step6"
    assert len(seen.losses) == 4
    if leased:
        assert seen.status == 0
        assert re.search(OVERTAKEN, seen.output)
        assert in_its_save.is_dir(), "what its successor is writing is not its own to clear away"
    else:
        assert seen.status == 1
        assert seen.errors.startswith(f"trainer: {tmp_path}/checkpoints/latest names global_step6, ")
        assert "global_step4" in seen.errors and seen.errors.count("\n") == 1
    manifest = json.loads((tmp_path / "checkpoints" / "global_step4" / "manifest.json").read_text())
    assert manifest["iteration"] == 4


def test_of_two_started_by_hand_on_one_folder_the_second_is_refused(
    pool: Pool, other_pool: Pool, corpus: str, tmp_path: Path
) -> None:
    trains, in_its_save = tmp_path / "trains", tmp_path / "checkpoints" / ".tmp-global_step4.of-the-first"
    with ThreadPoolExecutor(1) as thread:
        try:
            disturb = {"after_step": 3, "wait": str(trains)}
            first = thread.submit(other_pool.run, 1, run_training, writing(corpus, tmp_path), disturb)
            wait_for(trains)
            in_its_save.mkdir()
            refused = pool.run(2, run_training, writing(corpus, tmp_path))
            assert in_its_save.is_dir()
            trains.unlink()
            (seen,) = first.result(timeout=60)
        finally:
            trains.unlink(missing_ok=True)
    assert [(rank.status, rank.losses) for rank in refused] == [(1, [])] * 2
    (said,) = (rank.errors for rank in refused if rank.errors)
    assert f"{tmp_path}/checkpoints/{WRITER_LOCK}" in said and said.count("\n") == 1
    assert (seen.status, len(seen.losses)) == (0, 6)
    ranks = pool.run(2, run_training, writing(corpus, tmp_path))
    assert [(rank.status, rank.losses, rank.errors) for rank in ranks] == [(0, [], "")] * 2, "the first is over"


def test_what_cannot_be_locked_is_said_and_keeps_nobody_from_training(pool: Pool, corpus: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / WRITER_LOCK).symlink_to("/dev/null")
    (seen,) = pool.run(1, run_training, writing(corpus, tmp_path, train_iters=2))
    assert seen.status == 0 and names(tmp_path) == {"global_step2", "latest"}
    assert seen.errors.startswith(f"trainer: {tmp_path}/checkpoints/{WRITER_LOCK} ")
    assert seen.errors.count("\n") == 1


def wait_for(path: Path) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.02)


@pytest.mark.parametrize("begins", [{"load": None}, {"finetune": True}], ids=["without load", "finetune"])
def test_a_training_that_begins_before_what_is_saved_is_refused_before_it_costs_anything(
    pool: Pool, corpus: str, tmp_path: Path, begins: dict[str, Any]
) -> None:
    pool.run(1, run_training, writing(corpus, tmp_path, train_iters=2))
    ranks = pool.run(2, run_training, {**writing(corpus, tmp_path), "save_interval": 1, **begins})
    assert [(rank.status, rank.losses) for rank in ranks] == [(1, [])] * 2
    assert ranks[0].errors.startswith(f"trainer: --save {tmp_path}/checkpoints ")
    assert "global_step2" in ranks[0].errors and "iteration 0" in ranks[0].errors
    assert ranks[0].errors.count("\n") == 1
    assert ranks[1].errors == ""
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step2"


def test_a_missing_latest_beside_checkpoints_is_refused_on_all_ranks(pool: Pool, corpus: str, tmp_path: Path) -> None:
    pool.run(1, run_training, {**writing(corpus, tmp_path, train_iters=2), "save_interval": 1})
    (tmp_path / "checkpoints" / "latest").unlink()
    for options in (writing(corpus, tmp_path), {**writing(corpus, tmp_path), "load": None}):
        ranks = pool.run(2, run_training, options)
        assert [(rank.status, rank.losses) for rank in ranks] == [(1, [])] * 2
        root = tmp_path / "checkpoints"
        assert ranks[0].errors.startswith(f"trainer: {root}/latest ") and ranks[0].errors.count("\n") == 1
        assert "global_step2" in ranks[0].errors and "opsctl checkpoints repoint" in ranks[0].errors
        assert ranks[1].errors == ""


def test_a_training_whose_folder_is_moved_goes_on_saving_there_and_sees_its_switch_there(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    old, new = tmp_path / "run", tmp_path / "moved"
    old.mkdir()
    (old / LEASE_FILE).write_text(taken(1))
    options = writing(corpus, old, 1, kill_switch_path=str(old / "kill-switch"), tensorboard_dir=str(old / "tb"))
    disturb = {"after_step": 3, "move": (str(old), str(new)), "touch": str(new / "kill-switch")}
    ranks = pool.run(2, run_training, options, disturb)
    assert [(rank.status, len(rank.losses), rank.errors) for rank in ranks] == [(0, 3, "")] * 2
    assert f"[Detected kill switch at {old}/kill-switch. Exiting]" in ranks[0].output
    assert f"successfully saved checkpoint at iteration       3 to {old}/checkpoints" in ranks[0].output
    assert (new / "checkpoints" / "latest").read_text() == "global_step3"
    assert json.loads((new / "exit-1.json").read_text())["iteration"] == 3
    assert (new / "leaving.json").is_file()
    assert not old.exists()
