"""The log's lines, letter for letter, and read back by the program that follows logs."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from opsctl.logs.parser import parse_line
from trainer.formats.log_line import TrainingLine, argument_lines, evaluation_block, stamp, times_line, training_line
from trainer.loop.interval import Interval
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables
from trainer.recipe.sizes import HARDWARE_PASSES, tflops_per_gpu

LINE = TrainingLine(
    iteration=42780,
    train_iterations=115311,
    consumed_samples=55_930_000,
    consumed_tokens=114_544_640_000,
    seconds_per_iteration=105.224,
    learning_rate=5.9694e-05,
    global_batch_size=2048,
    loss=2.2091234,
    loss_scale=None,
    grad_norm=0.1284,
    params_norm=None,
    skipped_iterations=0,
    nan_iterations=0,
    samples_per_second=19.463,
    tflops=149.0222,
)


def test_a_training_line_is_the_documented_one() -> None:
    assert training_line(LINE) == (
        " iteration    42780/  115311 | consumed samples:     55930000 | consumed tokens: 114544640000 | "
        "elapsed time per iteration (s): 105.22 | learning rate: 5.969E-05 | global batch size:  2048 | "
        "lm loss: 2.209123E+00 | grad norm: 0.128 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 | samples per second: 19.463 | TFLOPs: 149.02 |"
    )


def test_a_training_line_matches_the_documented_format_with_every_optional_part() -> None:
    line = training_line(dataclasses.replace(LINE, loss_scale=65536.0, params_norm=812.3456))
    assert re.fullmatch(
        r" iteration [ \d]{8}/[ \d]{8} \| consumed samples: [ \d]{12} \| consumed tokens: [ \d]{12} \| "
        r"elapsed time per iteration \(s\): \d+\.\d\d \| learning rate: \d\.\d{3}E[-+]\d\d \| "
        r"global batch size: [ \d]{5} \| lm loss: \d\.\d{6}E[-+]\d\d \| loss scale: 65536\.0 \| "
        r"grad norm: \d+\.\d{3} \| params norm: 812\.346 \| number of skipped iterations: [ \d]{3} \| "
        r"number of nan iterations: [ \d]{3} \| samples per second: \d+\.\d{3} \| TFLOPs: \d+\.\d\d \|",
        line,
    )


@pytest.mark.parametrize("loss", [None, math.nan, math.inf, 0.0, -1.0])
def test_a_line_without_a_finite_positive_loss_has_no_loss(loss: float | None) -> None:
    line = training_line(dataclasses.replace(LINE, loss=loss, nan_iterations=3))
    assert "lm loss" not in line
    assert "number of nan iterations:   3 |" in line


def test_what_is_printed_is_read_back_by_the_log_parser() -> None:
    record = parse_line("[default7]:" + training_line(LINE) + "\n")
    assert record is not None
    for name, value in {
        "iteration": 42780,
        "total_iterations": 115311,
        "consumed_samples": 55_930_000,
        "consumed_tokens": 114_544_640_000,
        "seconds": 105.22,
        "learning_rate": 5.969e-05,
        "global_batch_size": 2048,
        "loss": 2.209123,
        "grad_norm": 0.128,
        "nan_iterations": 0,
        "tflops": 149.02,
    }.items():
        assert getattr(record, name) == value, name
    evaluation = parse_line(evaluation_block("valid", "iteration 1000", 2.5).splitlines()[1])
    assert (evaluation.group, evaluation.iteration, evaluation.loss) == ("valid", 1000, 2.5)  # type: ignore[union-attr]
    timers = parse_line(times_line({"save-checkpoint": 40123.456}))
    assert timers.milliseconds == {"save-checkpoint": 40123.46}  # type: ignore[union-attr]


def test_an_evaluation_is_framed_one_dash_longer_than_its_line() -> None:
    rule, line, again = evaluation_block("valid", "the end of training for val data", 25.0).splitlines()
    assert line == (
        " valid loss at the end of training for val data | lm loss value: 2.500000E+01 | "
        f"lm loss PPL: {math.exp(20):.6E} | "
    )
    assert rule == again == "-" * (len(line) + 1)


def test_a_stamp_has_the_local_time_and_a_trailing_blank() -> None:
    assert re.fullmatch(r"\[before the start\] datetime: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", stamp("before the start"))


def test_arguments_are_sorted_and_dotted_to_one_column() -> None:
    lines = argument_lines({"seed": 42, "adam_beta1": 0.9, "DDP_impl": "local"}).splitlines()
    assert lines[0] == "------------------------ arguments ------------------------"
    assert lines[-1] == "-------------------- end of arguments ---------------------"
    assert [line.split()[0] for line in lines[1:-1]] == ["adam_beta1", "DDP_impl", "seed"]
    assert lines[3] == "  seed " + "." * 44 + " 42"
    assert {line.rindex(". ") for line in lines[1:-1]} == {50}


@pytest.mark.parametrize(
    ("batch_size", "seconds", "printed"), [(2048, 105.22, 149.02), (2048, 104.70, 149.77), (16, 15.23, 8.04)]
)
def test_tflops_are_those_that_the_176b_run_printed(batch_size: int, seconds: float, printed: float) -> None:
    sizes = {"num_layers": 70, "hidden_size": 14336, "num_attention_heads": 112, "seq_length": 2048}
    shape = ModelShape.of(from_tables(sizes), 250880)
    assert tflops_per_gpu(shape, batch_size, 2048, seconds, 384, HARDWARE_PASSES) == pytest.approx(printed, rel=1e-3)


def test_an_interval_averages_the_finite_losses_and_counts_the_others() -> None:
    interval = Interval()
    interval.add(2.0, samples=16, seconds=1.0, skipped=False)
    interval.add(math.nan, samples=16, seconds=1.0, skipped=False)
    interval.add(math.inf, samples=32, seconds=2.0, skipped=True)
    interval.add(4.0, samples=32, seconds=4.0, skipped=False)
    assert interval.loss == 3.0
    assert (interval.nan, interval.skipped, interval.iterations) == (2, 1, 4)
    assert interval.seconds_per_iteration == 2.0
    assert interval.samples_per_second == 12.0
    nothing = Interval()
    nothing.add(math.nan, samples=1, seconds=1.0, skipped=False)
    assert nothing.loss is None
