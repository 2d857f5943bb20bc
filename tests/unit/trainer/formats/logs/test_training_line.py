"""The line about an iteration: letter for letter, and read back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.formats.logs.training_line import (
    MARKS,
    TrainingLine,
    iterations_in,
    layout_like,
    parse_training_line,
    write_training_line,
)
from trainer.loop.log import Interval
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import from_tables
from trainer.recipe.sizes import HARDWARE_PASSES, tflops_per_gpu

LINE = TrainingLine(
    iteration=42780,
    total_iterations=115311,
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
    assert write_training_line(LINE) == (
        " iteration    42780/  115311 | consumed samples:     55930000 | consumed tokens: 114544640000 | "
        "elapsed time per iteration (s): 105.22 | learning rate: 5.969E-05 | global batch size:  2048 | "
        "lm loss: 2.209123E+00 | grad norm: 0.128 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 | samples per second: 19.463 | TFLOPs: 149.02 |"
    )


def test_a_training_line_matches_the_documented_format_with_every_optional_part() -> None:
    line = write_training_line(msgspec.structs.replace(LINE, loss_scale=65536.0, params_norm=812.3456))
    assert re.fullmatch(
        r" iteration [ \d]{8}/[ \d]{8} \| consumed samples: [ \d]{12} \| consumed tokens: [ \d]{12} \| "
        r"elapsed time per iteration \(s\): \d+\.\d\d \| learning rate: \d\.\d{3}E[-+]\d\d \| "
        r"global batch size: [ \d]{5} \| lm loss: \d\.\d{6}E[-+]\d\d \| loss scale: 65536\.0 \| "
        r"grad norm: \d+\.\d{3} \| params norm: 812\.346 \| number of skipped iterations: [ \d]{3} \| "
        r"number of nan iterations: [ \d]{3} \| samples per second: \d+\.\d{3} \| TFLOPs: \d+\.\d\d \|",
        line,
    )


def test_a_line_cut_anywhere_says_of_its_numbers_only_those_that_a_bar_closes() -> None:
    printed = write_training_line(LINE)
    whole = parse_training_line(printed)
    for end in range(printed.index("|") + 1, len(printed)):
        found = parse_training_line(printed[:end])
        assert found is not None
        told = [name for name in found.__struct_fields__ if getattr(found, name) not in (None, {})]
        assert len(told) == 2 + printed[:end].count("|") - 1, printed[:end]
        assert all(getattr(found, name) == getattr(whole, name) for name in told), printed[:end]


@pytest.mark.parametrize("loss", [None, math.nan, math.inf, 0.0, -1.0])
def test_a_line_without_a_finite_positive_loss_has_no_loss(loss: float | None) -> None:
    line = write_training_line(msgspec.structs.replace(LINE, loss=loss, nan_iterations=3))
    assert "lm loss" not in line
    assert "number of nan iterations:   3 |" in line


COUNTS = st.integers(0, 2**53)
NUMBERS = st.floats(0, 1e12)
#: How far from the value the printed one may be, where it has not two digits after the point.
ROUNDING = {"learning_rate": 1e-99, "loss": 1e-99, "loss_scale": 0.051}
LINES = st.builds(
    TrainingLine,
    iteration=st.integers(0, 10**18 - 1),
    total_iterations=st.integers(0, 10**18 - 1),
    **{name: st.none() | COUNTS for name in ("consumed_samples", "consumed_tokens", "global_batch_size")},
    **{name: st.none() | COUNTS for name in ("skipped_iterations", "nan_iterations")},
    **{name: st.none() | NUMBERS for name in ("seconds_per_iteration", "learning_rate", "loss_scale", "grad_norm")},
    **{name: st.none() | NUMBERS for name in ("params_norm", "samples_per_second", "tflops")},
    loss=st.none() | st.floats(1e-30, 1e30),
)


@given(LINES)
def test_any_line_is_read_back_as_exactly_as_it_was_printed(line: TrainingLine) -> None:
    printed = write_training_line(line)
    found = parse_training_line(printed)
    assert found is not None and write_training_line(found) == printed
    for field, value in msgspec.structs.asdict(line).items():
        read = getattr(found, field)
        near = pytest.approx(value, rel=1e-3, abs=ROUNDING.get(field, 0.0051)) if isinstance(value, float) else value
        assert read == near, field


@given(st.lists(LINES))
def test_iterations_are_found_in_a_nodes_output_behind_any_prefix(lines: Iterable[TrainingLine]) -> None:
    output = "".join(
        f"{prefix}{write_training_line(line)}\nvalid loss at iteration 7 | lm loss value: 1.0 |\n"
        for line, prefix in zip(lines, ["", "[default7]:", "3: [default1]:"] * 99, strict=False)
    )
    assert list(iterations_in(output.encode() + b"\xff iteration 3/")) == [line.iteration for line in lines]


def test_a_full_line_can_be_found_by_its_mark() -> None:
    assert any(mark in write_training_line(LINE).encode() for mark in MARKS)


@pytest.mark.parametrize(
    ("batch_size", "seconds", "printed"), [(2048, 105.22, 149.02), (2048, 104.70, 149.77), (16, 15.23, 8.04)]
)
def test_tflops_are_those_that_the_176b_run_printed(batch_size: int, seconds: float, printed: float) -> None:
    sizes = {"num_layers": 70, "hidden_size": 14336, "num_attention_heads": 112, "seq_length": 2048}
    shape = ModelShape.of(from_tables(sizes), Vocabulary.unpadded(250880))
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


def by_layout(example: str, *texts: str) -> list[TrainingLine]:
    """Return the lines that the layout of `example` reads of `texts`, from the first on."""
    layout = layout_like(example)
    alike = layout.read("".join(f"{text}\n" for text in texts).encode(), 0)[0] if layout is not None else None
    return [] if alike is None else [*alike.lines()]


@given(
    st.builds(
        TrainingLine,
        iteration=st.integers(0, 10**8),
        total_iterations=st.integers(1, 10**8),
        consumed_samples=st.integers(0, 10**11),
        seconds_per_iteration=st.floats(0, 1e6),
        loss=st.floats(1e-6, 1e6) | st.none(),
        loss_scale=st.floats(1, 2**40) | st.none(),
        nan_iterations=st.integers(0, 999),
    )
)
def test_a_layout_reads_a_line_that_looks_the_same_as_it_is_read_part_by_part(line: TrainingLine) -> None:
    example = write_training_line(LINE)
    text = write_training_line(msgspec.structs.replace(LINE, **{"loss": line.loss, "iteration": line.iteration}))
    assert by_layout(example, text) == ([] if line.loss is None else [parse_training_line(text)])
    text = write_training_line(line)
    assert by_layout(text, text) == [parse_training_line(text)]
    assert by_layout(example, text) == []


def test_a_layout_reads_consecutive_lines_up_to_the_first_that_looks_different() -> None:
    texts = [write_training_line(msgspec.structs.replace(LINE, iteration=at)) for at in (1, 2, 3)]
    data = "".join(f"{text}\r\n" for text in texts)
    layout = layout_like(texts[0])
    assert layout is not None
    alike, end = layout.read(f"{data}saving\n{data}".encode(), 0)
    assert end == len(data) and alike is not None and len(alike) == 3
    assert [*alike.lines()] == [parse_training_line(text) for text in texts]


@pytest.mark.parametrize(
    "change", [("0.128", "n/a"), ("0.128", "1e"), ("2048 |", "2048.5 |"), ("|", "| x |"), ("42780", "4278O")]
)
def test_a_layout_leaves_alone_what_looks_different(change: tuple[str, str]) -> None:
    text = write_training_line(LINE)
    assert by_layout(text, text.replace(*change)) == []
    changed = parse_training_line(text.replace(*change))
    assert by_layout(text.replace(*change), text.replace(*change)) in ([], [changed])
