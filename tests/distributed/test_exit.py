"""Leaving a training: all ranks together, saved once, with the reason printed and written down."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import TINY, VOCABULARY, Seen, run_training, write_corpus
from trainer.recipe.options import to_arguments

pytestmark = pytest.mark.distributed

DATETIME = r"datetime: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def leave(
    pool: Pool, corpus: str, folder: Path, world_size: int = 1, disturb: dict[str, Any] | None = None, **options: Any
) -> tuple[list[Seen], dict[str, Any]]:
    """Train in `folder`; what the ranks saw, and the exit report."""
    everything = {
        "data_path": [corpus],
        "train_iters": 6,
        "save": str(folder / "checkpoints"),
        "load": str(folder / "checkpoints"),
        "kill_switch_path": str(folder / "kill-switch"),
        "stop_request_path": str(folder / "stop-request"),
        "exit_report_path": str(folder / "exit.json"),
        **options,
    }
    ranks = pool.run(world_size, run_training, everything, disturb)
    assert [rank.status for rank in ranks] == [0] * world_size, ranks[0].errors
    return ranks, json.loads((folder / "exit.json").read_text())


def test_the_kill_switch_at_start_up_ends_the_training_before_anything_is_built(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    (tmp_path / "kill-switch").touch()
    ranks, report = leave(pool, corpus, tmp_path, world_size=2)
    assert report == {"reason": "kill-switch", "iteration": 0, "consumed_train_samples": 0}
    assert re.fullmatch(
        rf"\[Detected kill switch at {tmp_path}/kill-switch\. Exiting\] {DATETIME}\n", ranks[0].output
    ), ranks[0].output
    assert ranks[1].output == ""
    assert not (tmp_path / "checkpoints").exists()


def test_the_kill_switch_in_the_loop_saves_and_all_ranks_leave_after_the_same_step(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """Only the first rank can see the file appear, and all of TP 2 x PP 2 leave."""
    layout: dict[str, Any] = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    disturb = {"after_step": 2, "touch": str(tmp_path / "kill-switch")}
    ranks, report = leave(pool, corpus, tmp_path, 4, disturb, **layout)
    assert [len(rank.losses) for rank in ranks] == [2] * 4
    assert report == {"reason": "kill-switch", "iteration": 2, "consumed_train_samples": 16}
    assert re.search(rf"(?m)^\[Detected kill switch at {tmp_path}/kill-switch\. Exiting\] {DATETIME}$", ranks[0].output)
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step2"

    # The next task sees it at once, tells where the training stands, and touches nothing.
    again, report = leave(pool, corpus, tmp_path, 4, **layout)
    assert report == {"reason": "kill-switch", "iteration": 2, "consumed_train_samples": 16}
    assert [rank.losses for rank in again] == [[]] * 4
    (tmp_path / "kill-switch").unlink()
    further, report = leave(pool, corpus, tmp_path, 4, **layout)
    assert len(further[0].losses) == 4
    assert report == {"reason": "finished", "iteration": 6, "consumed_train_samples": 48}


def test_a_stop_request_saves_and_leaves(pool: Pool, corpus: str, tmp_path: Path) -> None:
    (seen,), report = leave(pool, corpus, tmp_path, disturb={"after_step": 3, "touch": str(tmp_path / "stop-request")})
    assert report["reason"] == "stop-request"
    assert report["iteration"] == len(seen.losses) == 3
    assert re.search(rf"(?m)^\[Detected stop request at {tmp_path}/stop-request\. Exiting\] {DATETIME}$", seen.output)
    assert (tmp_path / "checkpoints" / "latest").read_text() == "global_step3"


def test_repeated_sigterm_saves_once_and_leaves(pool: Pool, corpus: str, tmp_path: Path) -> None:
    ranks, report = leave(
        pool, corpus, tmp_path, world_size=2, disturb={"after_step": 2, "signal": int(signal.SIGTERM)}
    )
    assert report["reason"] == "stop-request"
    assert [len(rank.losses) for rank in ranks] == [2, 2]
    assert ranks[0].output.count("saving checkpoint at iteration") == 1
    assert "[exiting program after receiving SIGTERM] datetime: " in ranks[0].output


def run_with_a_stop_during_a_save(options: dict[str, Any], disturb: dict[str, Any] | None = None) -> Seen:
    """Train; the first rank finds a stop request that came while it wrote its first checkpoint."""
    from trainer.checkpoint.save import save_checkpoint as real
    from trainer.loop import save

    def interrupted(*args: Any) -> Any:
        if os.environ["RANK"] == "0":
            Path(options["stop_request_path"]).touch()
        return real(*args)

    setattr(save, "save_checkpoint", interrupted)  # noqa: B010 - the saver imports the name for itself
    try:
        return run_training(options, disturb)
    finally:
        setattr(save, "save_checkpoint", real)  # noqa: B010


@pytest.mark.parametrize("is_asked_for", [False, True], ids=["due", "asked for"])
def test_a_stop_that_comes_during_a_save_is_heard_before_another_step(
    pool: Pool, corpus: str, tmp_path: Path, is_asked_for: bool
) -> None:
    """The votes of the step before the save are from before it, and no second save follows."""
    places = {name: str(tmp_path / name) for name in ("save", "load", "stop_request_path", "save_request_path")}
    options = {"data_path": [corpus], "train_iters": 6, "exit_report_path": str(tmp_path / "exit.json"), **places}
    request = (places["save_request_path"], json.dumps({"id": "one"}))
    ask = {"after_step": 2, "append": request} if is_asked_for else None
    ranks = pool.run(2, run_with_a_stop_during_a_save, {**options, "save_interval": 6 if is_asked_for else 2}, ask)
    assert [rank.status for rank in ranks] == [0, 0], ranks[0].errors
    report = json.loads((tmp_path / "exit.json").read_text())
    assert (report["reason"], report["iteration"]) == ("stop-request", 2)
    assert [len(rank.losses) for rank in ranks] == [2, 2]
    assert ranks[0].output.count("saving checkpoint at iteration") == 1


def test_what_was_saved_this_very_iteration_is_not_saved_again(pool: Pool, corpus: str, tmp_path: Path) -> None:
    disturb = {"after_step": 2, "touch": str(tmp_path / "kill-switch")}
    (seen,), _ = leave(pool, corpus, tmp_path, disturb=disturb, save_interval=2)
    assert seen.output.count("successfully saved checkpoint at iteration       2 to ") == 1
    assert seen.output.count("saving checkpoint at") == 1

    # Nor is what was just loaded: the switch appears again before the first step could be taken.
    manifest = tmp_path / "checkpoints" / "global_step2" / "manifest.json"
    written_at = manifest.stat().st_mtime_ns
    (tmp_path / "kill-switch").unlink()
    leave(pool, corpus, tmp_path, exit_duration_in_mins=0.0)
    assert manifest.stat().st_mtime_ns == written_at


def test_the_exit_duration_is_in_minutes_since_the_start(pool: Pool, corpus: str, tmp_path: Path) -> None:
    (seen,), report = leave(pool, corpus, tmp_path, exit_duration_in_mins=0.0)
    assert report["reason"] == "exit-duration"
    assert seen.losses == []
    assert re.search(rf"(?m)^\[exiting program after \d+\.\d+ minutes\] {DATETIME}$", seen.output)
    (seen,), report = leave(pool, corpus, tmp_path, exit_duration_in_mins=1000.0)
    assert report["reason"] == "finished"
    assert len(seen.losses) == 6


def test_the_exit_interval_is_a_multiple_of_the_iteration_not_of_this_run(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    reached = []
    for interval in (4, 3, 3, 3):
        (seen,), report = leave(pool, corpus, tmp_path, exit_interval=interval)
        reached.append((report["reason"], report["iteration"], len(seen.losses)))
        if report["reason"] == "exit-interval":
            assert f"[exiting program at iteration {report['iteration']}] datetime: " in seen.output
    assert reached == [("exit-interval", 4, 4), ("finished", 6, 2), ("finished", 6, 0), ("finished", 6, 0)]


def test_a_finished_training_leaves_at_once_and_saves_nothing_new(pool: Pool, corpus: str, tmp_path: Path) -> None:
    leave(pool, corpus, tmp_path, train_iters=2, lr_decay_style="constant")
    manifest = tmp_path / "checkpoints" / "global_step2" / "manifest.json"
    written_at = manifest.stat().st_mtime_ns
    (seen,), report = leave(pool, corpus, tmp_path, train_iters=2, lr_decay_style="constant")
    assert report == {"reason": "finished", "iteration": 2, "consumed_train_samples": 16}
    assert "[after training is done] datetime: " in seen.output
    assert seen.losses == []
    assert manifest.stat().st_mtime_ns == written_at


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_counted_and_kept_out_of_the_mean(
    pool: Pool, corpus: str, tmp_path: Path, value: float
) -> None:
    (seen,), _ = leave(pool, corpus, tmp_path, disturb={"after_step": 3, "loss": value}, train_iters=4)
    lines = [line for line in seen.output.splitlines() if line.startswith(" iteration")]
    assert ["lm loss" in line for line in lines] == [True, True, False, True]
    assert [int(re.search(r"nan iterations: +(\d+) \|", line)[1]) for line in lines] == [0, 0, 1, 0]  # type: ignore[index]


def test_iterations_in_a_row_without_a_finite_loss_end_the_training_on_every_rank_and_nothing_is_saved(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """At this learning rate the first update leaves no finite weight."""
    diverging: dict[str, Any] = {"lr": 1e38, "min_lr": 1e38, "max_skipped_iterations": 3, "train_iters": 9}
    ranks, report = leave(pool, corpus, tmp_path, 2, **diverging)
    in_vain = [not math.isfinite(loss) for loss in ranks[0].losses]
    assert in_vain[-3:] == [True] * 3 and not in_vain[-4] and len(in_vain) < 9
    assert all(len(rank.losses) == len(in_vain) for rank in ranks)
    assert report["reason"] == "skipped-iterations"
    assert "exiting program after 3 skipped or nan iterations in a row (--max-skipped-iterations)" in ranks[0].output
    assert not list((tmp_path / "checkpoints").glob("global_step*"))


def test_options_and_data_that_cannot_be_are_refused_in_one_line(pool: Pool, corpus: str, tmp_path: Path) -> None:
    for wrong, complaint in (
        ({"data_path": [str(tmp_path / "absent")]}, "absent"),
        ({"global_batch_size": 6, "micro_batch_size": 4}, "not divisible by --micro-batch-size 4"),
        ({"fp16": True}, "--fp16 needs a GPU"),
        ({"distributed_backend": "nccl"}, "--distributed-backend nccl needs a GPU"),
        ({"seq_length": 100_000}, "smaller than one sample"),
        (
            {"lr_decay_style": "WSD", "train_iters": 4, "lr_decay_iters": 2, "lr_wsd_decay_iters": 1},
            "--lr-decay-iters 2 ends before --train-iters 4",
        ),
    ):
        ranks = pool.run(2, run_training, {"data_path": [corpus], "train_iters": 2, **wrong})
        assert [rank.status for rank in ranks] == [2, 2]
        assert complaint in ranks[0].errors
        assert ranks[0].errors.count("\n") == 1
        assert ranks[1].errors == ""


@pytest.mark.parametrize("name", ["tensorboard_dir", "log_path"])
def test_a_folder_that_cannot_be_written_is_refused_in_one_line(
    pool: Pool, corpus: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    ranks = pool.run(2, run_training, {"data_path": [corpus], "train_iters": 2, name: str(tmp_path / "file")})
    assert [rank.status for rank in ranks] == [1, 1]
    option = "--" + name.replace("_", "-")
    assert [rank.errors for rank in ranks] == [f"trainer: {option} {tmp_path}/file: File exists\n", ""]


def test_no_exit_handler_keeps_a_failed_rank(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failing = {
        **TINY,
        "data_path": [corpus],
        "train_iters": 1,
        "exit_report_path": str(tmp_path / "file" / "exit.json"),
    }
    code = (
        "import atexit, runpy, time; atexit.register(time.sleep, 600);"
        " runpy.run_module('trainer.pretrain_gpt', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, *to_arguments(failing)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert "NotADirectoryError" in done.stderr


def status_and_errors(options: dict[str, Any]) -> tuple[int | None, str]:
    """In a rank: the exit status, None where another rank's end raised an exception here, and what was complained."""
    import torch.distributed as dist

    try:
        seen = run_training(options)
    except RuntimeError as error:
        dist.destroy_process_group()
        return None, str(error)
    return seen.status, seen.errors


@pytest.mark.parametrize("layout", [{}, {"pipeline_model_parallel_size": 2}])
def test_a_sample_that_cannot_be_used_ends_the_training_at_once_with_the_reason(
    pool: Pool, tmp_path: Path, layout: dict[str, Any]
) -> None:
    corpus = write_corpus(tmp_path)
    with Path(f"{corpus}.bin").open("r+b") as file:  # one token of all, in a sample that one of two replicas reads
        file.seek(200)
        file.write((VOCABULARY + 1).to_bytes(2, "little"))
    ends = pool.run(2, status_and_errors, {"data_path": [corpus], "train_iters": 40, **layout}, timeout_s=50)
    told = [errors for status, errors in ends if status == 2]
    assert told, ends
    for errors in told:
        assert re.search(r"^trainer: .*\b65\b.*\b64\b", errors)
        assert errors.count("\n") == 1


def disturbed_end(fault: str, options: dict[str, Any]) -> tuple[int | None, str]:
    """In a rank: as `status_and_errors` of a training with a fault."""
    from tests.distributed.disturbed_training import disturb

    disturb(fault)
    return status_and_errors(options)


@pytest.mark.parametrize(
    ("fault", "rank", "complaint"),
    [
        ("no data: rank 0", 0, "corpus gone"),
        ("no data: rank 1", 1, "corpus gone"),
        ("bad sample: thread", 1, "sample 14: bad"),
        ("bad sample: evaluation", 1, "sample 14: bad"),
    ],
)
def test_what_one_rank_meets_alone_it_says_at_once_and_ends_with(
    pool: Pool, corpus: str, fault: str, rank: int, complaint: str
) -> None:
    """The other is waiting for it in something else then, for up to half an hour, and loses it."""
    options: dict[str, Any] = {"data_path": [corpus], "train_iters": 8, "global_batch_size": 4}
    options |= {"eval_iters": 4, "eval_interval": 2} if "evaluation" in fault else {}
    options |= {"num_workers": 2} if "thread" in fault else {}
    ends = pool.run(2, disturbed_end, fault, options, timeout_s=120)
    assert ends[rank] == (2, f"trainer: {complaint}\n")
    assert ends[1 - rank][0] is None  # its connection closed


def test_an_evaluation_sees_the_kill_switch_between_batches_and_is_not_reported(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """Cut short at iteration 2, its samples count as consumed: the evaluation at iteration 4 takes its own."""
    evaluating: dict[str, Any] = {"eval_iters": 3, "eval_interval": 2, "train_iters": 4, "global_batch_size": 4}
    whole, _ = leave(pool, corpus, tmp_path / "whole", 2, **evaluating)
    disturb = {"after_step": 2, "touch": str(tmp_path / "kill-switch")}
    first, report = leave(pool, corpus, tmp_path, 2, disturb, **evaluating)
    assert report["reason"] == "kill-switch"
    assert re.search(r"(?m)^ evaluation at iteration 2 ", first[-1].output)
    assert "loss at iteration 2" not in first[-1].output
    (tmp_path / "kill-switch").unlink()
    second, _ = leave(pool, corpus, tmp_path, 2, **evaluating)
    of_fourth = r"(?m)^ valid loss at iteration 4 .*$"
    assert re.findall(of_fourth, second[-1].output) == re.findall(of_fourth, whole[-1].output) != []


def test_the_end_of_document_mask_takes_the_token_noted_beside_the_data(pool: Pool, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    (plain,) = pool.run(1, run_training, {"data_path": [corpus], "train_iters": 1})
    (refused,) = pool.run(1, run_training, {"data_path": [corpus], "train_iters": 1, "eod_mask_loss": True})
    assert refused.status == 2
    assert "--eod-mask-loss" in refused.errors
    Path(f"{corpus}.json").write_text(json.dumps({"eod": 5}))
    weighted = {"train_weighted_split_paths": [f"train: 1 0:0.8 {corpus}"], "train_iters": 1}
    for source in ({"data_path": [corpus], "train_iters": 1}, weighted):
        (masked,) = pool.run(1, run_training, {**source, "eod_mask_loss": True})
        assert masked.status == 0, masked.errors
        assert masked.losses != plain.losses


def test_every_validation_group_is_evaluated_and_the_training_goes_on_unchanged(pool: Pool, corpus: str) -> None:
    groups = {
        "train_weighted_split_paths": [f"train: 1 0:0.8 {corpus}"],
        "valid_weighted_split_paths": [f"first: 1 0.8:0.9 {corpus}", f"second: 1 0.9:1 {corpus}"],
    }
    plain = pool.run(2, run_training, {**groups, "train_iters": 4})
    evaluated = pool.run(2, run_training, {**groups, "train_iters": 4, "eval_iters": 1, "eval_interval": 2})
    assert evaluated[-1].losses == plain[-1].losses
    found = re.findall(
        r"^-+\n (\w+) loss at (iteration \d|the end of training for val data)"
        r" \| lm loss value: (\S+) \| lm loss PPL: (\S+) \| \n-+$",
        evaluated[-1].output,
        re.MULTILINE,
    )
    assert [(group, when) for group, when, _, _ in found] == [
        (group, when)
        for when in ("iteration 2", "iteration 4", "the end of training for val data")
        for group in ("first", "second")
    ]
    assert all(math.isclose(math.exp(float(loss)), float(ppl), rel_tol=1e-4) for _, _, loss, ppl in found)
