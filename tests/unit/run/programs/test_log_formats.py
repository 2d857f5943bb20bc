"""Logs of other programs are read by their lines, as the packages print them.

`recorded/` has lines of short trainings, by package and version. Those of torchtitan, Megatron and NeMo, which train on
GPUs only, were printed by the packages' own loggers and progress bars in a process without one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.run.logs.reader import LogReader
from opsctl.run.programs.log_formats import training_lines
from trainer.formats.logs.training_line import AlikeLines, TrainingLine

RECORDED = Path(__file__).parent / "recorded"
#: Losses by step, as the scripts computed them. The second Lightning training resumed the first at step 11, and shows
#: that Lightning trains the first batches of the epoch again: step 12 has the data of step 9.
FIRST = [5.164, 5.375, 4.441, 28.21, 4.988, 1.876, 11.09, 10.621, 9.873, 8.96, 3.601, 1.213, 5.238]
SECOND = [9.438, 8.61, 3.374, 1.18, 5.044, 9.9, 6.668, 2.789, 2.109]
NEMO = [0.419, 0.377, 0.32, 0.21, 0.143, 0.0869, 0.177, 0.0556, 0.21, 0.153, 0.162, 0.0803]
LITGPT = [6.228, 6.233, 6.154, 6.118, 6.054, 6.065, 5.969, 5.903, 5.831, 5.743, 5.78]
LOSSES: dict[str, dict[int, float]] = {
    "lightning-2.6.6-tqdm-first": dict(enumerate(FIRST, 1)),
    "lightning-2.6.6-tqdm-second": dict(enumerate(SECOND, 12)),
    # rich does not draw the last batch of an epoch.
    "lightning-2.6.6-rich-first": {step: loss for step, loss in enumerate(FIRST, 1) if step != 8},
    "lightning-2.6.6-rich-second": {step: loss for step, loss in enumerate(SECOND, 12) if step != 16},
    "litgpt-0.5.13": dict(enumerate(LITGPT, 1)),
    "megatron-bridge-0.3.1": {10: 10.9123, 20: 9.5, 30: 8.25},
    "nemo-2.7.3-bar": dict(enumerate(NEMO, 1)),
    "nemo-2.7.3-printer": {step: (NEMO[step - 2] + NEMO[step - 1]) / 2 for step in range(2, 13, 2)},  # means of two
    "torchtitan-0.3.0": {1: 8.1661, 10: 6.48656, 20: 6.05218, 30: 5.81169, 1000: 4.09275},
    "transformers-5.24.0": {4: 5.383, 8: 5.374, 12: 5.374},
}


def read(data: bytes, piece_bytes: int = 1 << 20) -> list[TrainingLine]:
    """Return the lines that `report --log` reads."""
    if lines := _fed(data):
        return lines
    return _fed(b"".join(training_lines(data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes))))


def _fed(data: bytes) -> list[TrainingLine]:
    found = LogReader().feed(data)
    lines = (line for one in found for line in (one.lines() if isinstance(one, AlikeLines) else (one,)))
    return [one for one in lines if isinstance(one, TrainingLine)]


def losses(lines: list[TrainingLine]) -> dict[int, float]:
    return {one.iteration: one.loss for one in lines if one.loss is not None}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("piece_bytes", [97, 1 << 20])
def test_the_losses_of_each_program_are_read_from_its_log(name: str, piece_bytes: int) -> None:
    data = (RECORDED / f"{name}.txt").read_bytes()
    assert losses(read(data, piece_bytes)) == pytest.approx(LOSSES[name], rel=0.01)


def test_every_recorded_log_has_its_losses() -> None:
    assert {path.stem for path in RECORDED.glob("*.txt")} == set(LOSSES)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nemo-2.7.3-bar", (0.001, 0.0123)),
        ("nemo-2.7.3-printer", (0.001, 0.0123)),
        ("litgpt-0.5.13", (None, 2 * 0.01498)),  # two micro-batches
        ("transformers-5.24.0", (4.167e-06, None)),
    ],
)
def test_learning_rates_and_seconds_are_read(name: str, values: tuple[float | None, float | None]) -> None:
    last = read((RECORDED / f"{name}.txt").read_bytes())[-1]
    assert (last.learning_rate, last.seconds_per_iteration) == (
        values[0],
        None if values[1] is None else pytest.approx(values[1], abs=0.02),
    )


def test_nanogpts_iterations_count_from_zero() -> None:
    text = (
        "step 0: train loss 4.2874, val loss 4.2823\n"
        "iter 0: loss 4.2665, time 41421.61ms, mfu -100.00%\n"
        "iter 10: loss 3.2456, time 24.80ms, mfu 15.02%\n"
        "iter 20: loss nan, time 24.70ms\n"
    )
    lines = read(text.encode())
    assert losses(lines) == {1: 4.2665, 11: 3.2456}
    assert [one.nan_iterations for one in lines] == [0, 0, 1] and lines[1].seconds_per_iteration == 0.02


def test_a_training_that_was_started_again_in_the_same_log_is_read_again() -> None:
    line = "Epoch 1 | iter {0} step {0} | loss train: {1}, val: n/a | iter time: 2.50 ms (step)\n"
    text = "".join(line.format(step, 5.0 + start) for start in (0, 1) for step in range(3 + start * 2, 8))
    assert [one.iteration for one in read(text.encode())] == [3, 4, 5, 6, 7, 5, 6, 7]


def test_a_rich_bar_without_a_terminal_reports_no_step() -> None:
    """It is drawn once, at the end, and its epoch is the shorter last one."""
    text = f"Epoch 3/-2 {'━' * 17} 4/4 0:00:00 • 0:00:00 44.29it/s v_num: 0.000\n   train_loss: 0.552\n"
    assert read(text.encode()) == []
