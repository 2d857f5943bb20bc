"""NaN in a rank's weights or in the loss: the latest checkpoint stays the last finite one, where the run resumes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import Seen, run_training, write_corpus
from trainer.formats.checkpoint.manifest import newest_complete, read_manifest
from trainer.formats.logs.log_lines import CheckpointFailed, parse_checkpoint_line

pytestmark = pytest.mark.distributed

PIPELINE: dict[str, Any] = {"pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2}
LAST_RANK = {1: 0, 2: 1, 4: 3}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def asked_for(corpus: str, folder: Path, **more: Any) -> dict[str, Any]:
    root = str(folder / "checkpoints")
    files = {name: str(folder / name) for name in ("kill_switch_path", "save_request_path", "exit_report_path")}
    every: dict[str, Any] = {"train_iters": 6, "save_interval": 2, "check_replicas_interval": 0}  # which would be first
    return {"data_path": [corpus], **every, "save": root, "load": root, **files, **more}


def refused_saves(ranks: list[Seen]) -> list[int]:
    """Return the iterations that the log reports as not saved because they are not finite."""
    said = [parse_checkpoint_line(line) for rank in ranks for line in rank.output.splitlines()]
    return [one.iteration for one in said if isinstance(one, CheckpointFailed) and one.not_finite]


def latest(folder: Path) -> str:
    return (folder / "checkpoints" / "latest").read_text()


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("*global_step*"))


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (2, {}),
        (2, {"async_save": True, "bf16": True}),
        (4, PIPELINE),
    ],
    ids=["two replicas", "beside the training", "TP 2 x PP 2"],
)
def test_a_weight_of_one_rank_that_is_nan_ends_the_training_and_the_next_start_resumes_before_it(
    pool: Pool, corpus: str, tmp_path: Path, ranks: int, more: dict[str, Any]
) -> None:
    options = asked_for(corpus, tmp_path, **more)
    whole = pool.run(ranks, run_training, asked_for(corpus, tmp_path / "whole", **more))
    spoilt = {"after_step": 4, "spoil": (LAST_RANK[ranks], "weight")}
    ended = pool.run(ranks, run_training, options, spoilt)
    assert [rank.status for rank in ended] == [1] * ranks, ended[0].output
    assert refused_saves(ended) == [4]
    assert f"rank {LAST_RANK[ranks]} " in ended[0].errors and ended[0].errors.count("\n") == 1
    assert (latest(tmp_path), saved(tmp_path)) == ("global_step2", ["global_step2"])

    again = pool.run(ranks, run_training, options)
    assert [rank.status for rank in again] == [0] * ranks, again[0].errors
    assert again[0].losses == whole[0].losses[2:]
    assert latest(tmp_path) == "global_step6"


def test_weights_that_are_nan_are_not_saved_on_the_way_out_and_the_training_leaves_as_it_was_asked_to(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    options = asked_for(corpus, tmp_path)
    leave = {"after_step": 3, "spoil": (0, "weight"), "touch": options["kill_switch_path"]}
    (seen,) = pool.run(1, run_training, options, leave)
    assert seen.status == 0, seen.errors
    assert json.loads(Path(options["exit_report_path"]).read_text())["reason"] == "kill-switch"
    assert refused_saves([seen]) == [3]
    assert (latest(tmp_path), saved(tmp_path)) == ("global_step2", ["global_step2"])


def test_a_training_whose_weights_are_nan_at_its_end_is_not_finished(pool: Pool, corpus: str, tmp_path: Path) -> None:
    options = asked_for(corpus, tmp_path, train_iters=5)
    (seen,) = pool.run(1, run_training, options, {"after_step": 5, "spoil": (0, "weight")})
    assert (seen.status, refused_saves([seen])) == (1, [5])
    assert not Path(options["exit_report_path"]).exists()
    assert latest(tmp_path) == "global_step4"
    (again,) = pool.run(1, run_training, options)
    assert (again.status, len(again.losses), latest(tmp_path)) == (0, 1, "global_step5")


@pytest.mark.parametrize("beside", [False, True], ids=["plain", "beside the training"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_save_that_is_due_at_a_loss_that_is_no_number_waits_for_the_next_finite_one(
    pool: Pool, corpus: str, tmp_path: Path, value: float, beside: bool
) -> None:
    options = asked_for(corpus, tmp_path, async_save=beside)
    ranks = pool.run(2, run_training, options, {"after_step": 4, "loss": value})
    assert [rank.status for rank in ranks] == [0, 0], ranks[0].errors
    assert refused_saves(ranks) == [4]
    assert saved(tmp_path) == ["global_step2", "global_step5", "global_step6"]


def test_who_asks_for_a_save_of_what_is_not_finite_gets_the_reason_and_the_training_continues(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    options = asked_for(corpus, tmp_path)
    asking = {"after_step": 3, "append": (options["save_request_path"], json.dumps({"id": "one"})), "loss": math.nan}
    (seen,) = pool.run(1, run_training, options, asking)
    answer = json.loads((tmp_path / "saved.json").read_text())
    assert (answer["id"], bool(answer["problem"])) == ("one", True)
    assert (seen.status, latest(tmp_path), len(seen.losses)) == (0, "global_step6", 6)
    assert "global_step3" not in saved(tmp_path)


def test_the_option_saves_what_is_not_finite_with_a_mark_and_nothing_falls_back_to_it(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    options = asked_for(corpus, tmp_path, save_non_finite=True)
    (seen,) = pool.run(1, run_training, options, {"after_step": 6, "spoil": (0, "weight")})
    assert (seen.status, latest(tmp_path)) == (0, "global_step6")
    root = tmp_path / "checkpoints"
    marks = [bool(read_manifest(root / f"global_step{iteration}").not_finite) for iteration in (2, 4, 6)]
    assert marks == [False, False, True]
    newest = newest_complete(root)
    assert newest is not None and newest.manifest.iteration == 4
