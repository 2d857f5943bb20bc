"""Saves on request: all ranks save together, and the training continues unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import Seen, run_training, write_corpus
from trainer.formats.checkpoint.manifest import fault_of

pytestmark = pytest.mark.distributed

LAYOUT: dict[str, Any] = {"tensor_model_parallel_size": 2, "micro_batch_size": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def train(
    pool: Pool, corpus: str, folder: Path, world_size: int, disturb: dict[str, Any] | None = None, **options: Any
) -> list[Seen]:
    everything = {
        "data_path": [corpus],
        "train_iters": 6,
        "kill_switch_path": str(folder / "kill-switch"),
        "save_request_path": str(folder / "save-request"),
        "exit_report_path": str(folder / "exit.json"),
        "save": str(folder / "checkpoints"),
        "load": str(folder / "checkpoints"),
        **options,
    }
    folder.mkdir(exist_ok=True)
    ranks = pool.run(world_size, run_training, everything, disturb)
    assert [rank.status for rank in ranks] == [0] * world_size, ranks[0].errors
    return ranks


def asking(folder: Path, after_step: int, name: str = "one") -> dict[str, Any]:
    return {"after_step": after_step, "append": (str(folder / "save-request"), json.dumps({"id": name}))}


def saves(seen: Seen) -> list[int]:
    return [int(number) for number in re.findall(r"successfully saved checkpoint at iteration +(\d+) to", seen.output)]


def test_all_ranks_save_and_train_on_and_no_loss_differs_by_a_bit(pool: Pool, corpus: str, tmp_path: Path) -> None:
    """Only the first rank can see the file appear, and all of TP 2 x DP 2 save."""
    plain = train(pool, corpus, tmp_path / "plain", 4, **LAYOUT)
    asked = train(pool, corpus, tmp_path / "asked", 4, asking(tmp_path / "asked", 2), **LAYOUT)
    assert [rank.losses for rank in asked] == [rank.losses for rank in plain]
    assert len(asked[0].losses) == 6
    assert (saves(plain[0]), saves(asked[0])) == ([6], [2, 6])
    said = json.loads((tmp_path / "asked" / "saved.json").read_text())
    assert (said["id"], said["iteration"], said["problem"]) == ("one", 2, "")
    for folder in (tmp_path / "asked" / "checkpoints").glob("global_step*"):
        assert fault_of(folder) is None
    report = json.loads((tmp_path / "asked" / "exit.json").read_text())
    assert (report["reason"], report["iteration"]) == ("finished", 6)


def test_what_is_saved_this_very_iteration_is_answered_and_not_saved_again(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    (seen,) = train(pool, corpus, tmp_path, 1, asking(tmp_path, 4), save_interval=2)
    assert saves(seen) == [2, 4, 6]
    said = json.loads((tmp_path / "saved.json").read_text())
    assert (said["iteration"], said["problem"]) == (4, "")


def test_a_request_from_before_the_start_is_carried_out_before_the_first_step_and_once(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    (tmp_path / "save-request").write_text(json.dumps({"id": "early"}))
    (seen,) = train(pool, corpus, tmp_path, 1)
    assert saves(seen) == [0, 6]
    assert json.loads((tmp_path / "saved.json").read_text())["iteration"] == 0


@pytest.mark.parametrize("text", ["", "{", '{"id": ', "[]", "\0" * 70_000])
def test_half_a_request_saves_nothing_and_stops_nothing(pool: Pool, corpus: str, tmp_path: Path, text: str) -> None:
    (tmp_path / "save-request").write_text(text)
    (seen,) = train(pool, corpus, tmp_path, 1, train_iters=2)
    assert saves(seen) == [2] and not (tmp_path / "saved.json").exists()


def train_on_a_disk_that_is_full_when_asked(options: dict[str, Any]) -> Seen:
    """In a rank: train, and let no file grow beyond a page while the asked save is made."""
    import resource
    import signal

    from trainer.loop.save import Saves

    really = Saves.when_asked_to_save

    def on_a_full_disk(saves: Any, progress: Any, answer: Any) -> bool:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            return really(saves, progress, answer)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    setattr(Saves, "when_asked_to_save", on_a_full_disk)  # noqa: B010 - a method is replaced
    return run_training(options)


def test_a_disk_that_takes_no_checkpoint_costs_the_answer_and_not_the_training(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    (tmp_path / "save-request").write_text(json.dumps({"id": "x"}))
    places = {"save": str(tmp_path / "checkpoints"), "save_request_path": str(tmp_path / "save-request")}
    options = {"data_path": [corpus], "train_iters": 3, **places}
    ranks = pool.run(2, train_on_a_disk_that_is_full_when_asked, options)
    assert [(rank.status, len(rank.losses)) for rank in ranks] == [(0, 3)] * 2, ranks[0].errors
    said = json.loads((tmp_path / "saved.json").read_text())
    assert said["id"] == "x" and "File too large" in said["problem"]
    assert saves(ranks[0]) == [3]
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))
    assert fault_of(tmp_path / "checkpoints" / "global_step3") is None


def test_a_training_that_keeps_no_checkpoints_says_so(pool: Pool, corpus: str, tmp_path: Path) -> None:
    (tmp_path / "save-request").write_text(json.dumps({"id": "x"}))
    (seen,) = train(pool, corpus, tmp_path, 1, save=None, load=None, train_iters=2)
    assert len(seen.losses) == 2
    assert "no --save" in json.loads((tmp_path / "saved.json").read_text())["problem"]
