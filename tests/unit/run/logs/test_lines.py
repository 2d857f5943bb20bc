"""Every variant of a training log's lines, as the original programs printed them."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.logs.lines import iteration_losses, parse_line, split_prefix
from opsctl.run.logs.records import Alert, Pulse, Record
from trainer.formats.logs.guard_lines import Left, Reason
from trainer.formats.logs.log_lines import (
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaving,
    Evaluation,
    FreshStart,
    Stamp,
    Timers,
)
from trainer.formats.logs.training_line import TrainingLine

TR11_EARLY = (
    "iteration     3707/  128728 | consumed samples:        59312 | consumed tokens:    121470976 |"
    " elapsed time per iteration (s): 15.23 | learning rate: 1.944E-05 | global batch size:    16 |"
    " lm loss: 5.396257E+00 | grad norm: 0.765 | num zeros: 0.0 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 | samples per second: 1.051 | TFLOPs: 8.04 |"
)
TR1 = (
    " iteration   168000/  311541 | consumed samples:    153013584 | elapsed time per iteration (ms): 13248.2 |"
    " learning rate: 1.000E-05 | global batch size:  1024 | lm loss: 2.376641E+00 | loss scale: 131072.0 |"
    " grad norm: 19767.052 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def iteration_of(line: str) -> TrainingLine:
    record = parse_line(line)
    assert isinstance(record, TrainingLine), line
    return record


def test_the_line_in_seconds_is_read_in_full() -> None:
    assert iteration_of(TR11_EARLY) == TrainingLine(
        iteration=3707,
        total_iterations=128728,
        consumed_samples=59312,
        consumed_tokens=121470976,
        seconds_per_iteration=15.23,
        learning_rate=1.944e-05,
        global_batch_size=16,
        loss=5.396257,
        loss_scale=None,
        grad_norm=0.765,
        samples_per_second=1.051,
        tflops=8.04,
        skipped_iterations=0,
        nan_iterations=0,
        others={"num zeros": 0.0},
    )


def test_the_older_line_in_milliseconds_with_a_loss_scale_and_without_tokens_is_read() -> None:
    found = iteration_of(TR1)
    assert (found.seconds_per_iteration, found.loss_scale, found.consumed_tokens) == (13.2482, 131072.0, None)
    assert (found.samples_per_second, found.tflops, found.loss) == (None, None, 2.376641)


def test_narrower_spacing_is_read() -> None:
    found = iteration_of("[default3]: iteration 42780/ 115311 | consumed samples: 1 | lm loss: 2.1E+00 |")
    assert (found.iteration, found.total_iterations, found.loss) == (42780, 115311, 2.1)


def test_a_diverged_line_has_no_loss() -> None:
    found = iteration_of(TR11_EARLY.replace(" lm loss: 5.396257E+00 |", ""))
    assert found.loss is None and found.iteration == 3707


@pytest.mark.parametrize("word", ["garbage", "", "--"])
def test_a_value_that_is_no_number_is_not_known(word: str) -> None:
    assert iteration_of(TR11_EARLY.replace("0.765", word)).grad_norm is None


def test_an_infinite_sample_count_is_not_known() -> None:
    assert iteration_of(TR11_EARLY.replace("        59312", "inf")).consumed_samples is None


def test_further_numbers_keep_their_names() -> None:
    found = iteration_of(TR11_EARLY + " params norm: 12.5 | curriculum seqlen:  1024 | grouped TFLOPs: 6.03 |")
    assert found.params_norm == 12.5
    assert found.others == {"num zeros": 0.0, "curriculum seqlen": 1024.0, "grouped TFLOPs": 6.03}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            " validation loss at iteration 168000 | lm loss value: 2.342049E+00 | lm loss PPL: 1.040253E+01 |",
            Evaluation("validation", 168000, 2.342049, 10.40253),
        ),
        (
            "[default7]: valid_en loss at iteration 1000 | lm loss value: 1.5E+00 | lm loss PPL: 4.5E+00 | ",
            Evaluation("valid_en", 1000, 1.5, 4.5),
        ),
        (
            " valid loss at the end of training for val data | lm loss value: 1.5E+00 | lm loss PPL: 4.5E+00 | ",
            Evaluation("valid", None, 1.5, 4.5),
        ),
        ("saving checkpoint at iteration      60 to /a b/checkpoints", CheckpointSaving(60, "/a b/checkpoints")),
        ("  successfully saved checkpoint at iteration      60 to /c", CheckpointSaved(60, "/c")),
        ("  successfully loaded checkpoint from /a at b at iteration 60", CheckpointLoaded(60, "/a at b")),
        ("[default0]:    will not load any checkpoints and will start from random", FreshStart()),
        ("time (ms)", Timers({})),
        ("time (ms) | save-checkpoint: 40123.45", Timers({"save-checkpoint": 40123.45})),
        (
            "[default0]:[before the start of training step] datetime: 2022-03-11 19:46:08 ",
            Stamp("before the start of training step", datetime(2022, 3, 11, 19, 46, 8)),  # noqa: DTZ001
        ),
        (
            "[Detected kill switch at /a b/kill-switch. Exiting] datetime: 2022-03-11 19:46:08 ",
            Left(Reason.KILL_SWITCH, "/a b/kill-switch", datetime(2022, 3, 11, 19, 46, 8)),  # noqa: DTZ001
        ),
        (
            "[exiting program at iteration 60] datetime: 2022-03-11 19:46:08",
            Left(Reason.EXIT_INTERVAL, "60", datetime(2022, 3, 11, 19, 46, 8)),  # noqa: DTZ001
        ),
        (
            "[exiting program after 1190.0271 minutes] datetime: 2022-03-11 19:46:08",
            Left(Reason.EXIT_DURATION, "1190.0271", datetime(2022, 3, 11, 19, 46, 8)),  # noqa: DTZ001
        ),
        (
            "[after training is done] datetime: 2022-03-11 19:46:08",
            Left(Reason.FINISHED, "", datetime(2022, 3, 11, 19, 46, 8)),  # noqa: DTZ001
        ),
        ("Detected kill switch at /p, iteration=12. Exiting", Left(Reason.KILL_SWITCH, "/p", None)),
        ("exiting program after receiving SIGTERM.", Left(Reason.SIGNAL, "SIGTERM", None)),
        (
            "***ALERT: x is not RUNNING or SCHEDULED! Alert someone at y***",
            Alert(None, "x", "y", "x is not RUNNING or SCHEDULED! Alert someone at y"),
        ),
    ],
)
def test_other_lines_are_read(line: str, expected: object) -> None:
    assert parse_line(line) == expected


def test_a_pulse_among_them_is_read() -> None:
    record = parse_line("[2022-03-11 19:46:08] PULSE: tr11 is waiting to be scheduled (12 on 'gpu_p5' partition)")
    assert isinstance(record, Pulse) and record.state == "pending"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[2022-03-11 19:46:08,123] [INFO] [engine.py:1234] rank=0 time (ms)",
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536.0, reducing to 32768.0",
        "Traceback (most recent call last):",
        "[exiting program at iteration 60] datetime: 2022-99-99 19:46:08",
        " iteration   12/  ",
        "an iteration 12/34 of mine",
        "-" * 90,
    ],
)
def test_a_line_that_is_no_record_is_none(line: str) -> None:
    assert parse_line(line) is None


#: What lines that say something are made of, to be put together wrongly.
PIECES = [
    *(f"{piece} |" for piece in TR11_EARLY.split(" |")),
    *("[exiting program at iteration ", "60", "] datetime: ", "2022-03-11 19:46:08", " loss at iteration "),
    *("time (ms) |", "successfully saved checkpoint at iteration ", " to ", "END TIME: "),
    *("PULSE: ", "***ALERT: ", "[default7]:", "\n"),
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join))
def test_no_line_is_an_error(line: str) -> None:
    record = parse_line(line)
    assert record is None or isinstance(record, Record)


@given(st.integers(0, len(TR11_EARLY)))
def test_a_line_cut_anywhere_is_an_iteration_or_nothing_and_never_another_one(cut: int) -> None:
    record = parse_line(TR11_EARLY[:cut])
    assert record is None or (isinstance(record, TrainingLine) and record.iteration == 3707)


def test_the_prefix_says_the_local_rank() -> None:
    assert split_prefix("[default12]: x") == (12, " x")
    assert split_prefix("3: [default1]:x") == (1, "x")
    assert split_prefix("x [default1]:") == (None, "x [default1]:")


def test_losses_come_in_the_logs_order_with_what_was_trained_again() -> None:
    text = "\n".join(
        [
            " iteration 1/ 3 | consumed samples: 1 | lm loss: 3.0 |",
            "noise",
            " iteration 2/ 3 | consumed samples: 2 | lm loss: 2.5 |",
            " iteration 2/ 3 | consumed samples: 2 | lm loss: 2.6 |",
            " iteration 3/ 3 | consumed samples: 3 |",
        ]
    )
    assert iteration_losses(text) == [(1, 3.0), (2, 2.5), (2, 2.6)]
