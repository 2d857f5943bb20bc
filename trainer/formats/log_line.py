"""The lines of a training log, letter for letter as Megatron-DeepSpeed prints them, so that its readers read ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# Above this a perplexity is a meaningless number of hundreds of digits.
_LARGEST_LOGGED_EXPONENT = 20.0
_ARGUMENT_COLUMN = 48


@dataclass(frozen=True)
class TrainingLine:
    """What one line of training says; means and counts are over the iterations since the line before."""

    iteration: int
    train_iterations: int
    consumed_samples: int
    consumed_tokens: int
    seconds_per_iteration: float
    learning_rate: float  # after the step: the next one runs at it
    global_batch_size: int
    loss: float | None  # None when no iteration had a finite one
    loss_scale: float | None  # fp16 only
    grad_norm: float | None
    params_norm: float | None
    skipped_iterations: int
    nan_iterations: int
    samples_per_second: float
    tflops: float  # of each rank


def training_line(line: TrainingLine) -> str:
    """Without a finite positive loss there is no loss field, as in the original; `nan iterations` then says why."""
    parts = [
        f" iteration {line.iteration:8d}/{line.train_iterations:8d}",
        f"consumed samples: {line.consumed_samples:12d}",
        f"consumed tokens: {line.consumed_tokens:12d}",
        f"elapsed time per iteration (s): {line.seconds_per_iteration:.2f}",
        f"learning rate: {line.learning_rate:.3E}",
        f"global batch size: {line.global_batch_size:5d}",
    ]
    if line.loss is not None and math.isfinite(line.loss) and line.loss > 0.0:
        parts.append(f"lm loss: {line.loss:.6E}")
    if line.loss_scale is not None:
        parts.append(f"loss scale: {line.loss_scale:.1f}")
    if line.grad_norm is not None:
        parts.append(f"grad norm: {line.grad_norm:.3f}")
    if line.params_norm is not None:
        parts.append(f"params norm: {line.params_norm:.3f}")
    parts += [
        f"number of skipped iterations: {line.skipped_iterations:3d}",
        f"number of nan iterations: {line.nan_iterations:3d}",
        f"samples per second: {line.samples_per_second:.3f}",
        f"TFLOPs: {line.tflops:.2f}",
    ]
    return " | ".join(parts) + " |"


def perplexity(loss: float) -> float:
    return math.exp(min(_LARGEST_LOGGED_EXPONENT, loss))


def evaluation_block(group: str, when: str, loss: float) -> str:
    """Three lines for one group; `when` is `iteration N` or `the end of training for val data`."""
    line = f" {group} loss at {when} | lm loss value: {loss:.6E} | lm loss PPL: {perplexity(loss):.6E} | "
    rule = "-" * (len(line) + 1)
    return f"{rule}\n{line}\n{rule}"


def times_line(milliseconds: Mapping[str, float]) -> str:
    return "time (ms)" + "".join(f" | {name}: {value:.2f}" for name, value in milliseconds.items())


def stamp(what: str) -> str:
    """`[what] datetime: 2022-03-11 14:03:12 `, local time, the trailing blank as in the original."""
    return f"[{what}] datetime: {datetime.now().astimezone():%Y-%m-%d %H:%M:%S} "


def argument_lines(options: Mapping[str, Any]) -> str:
    """Every option and its value, sorted, dotted to a common column."""
    lines = sorted(
        (f"  {key} {'.' * (_ARGUMENT_COLUMN - len(key))} {value}" for key, value in options.items()), key=str.lower
    )
    return "\n".join(
        [
            "------------------------ arguments ------------------------",
            *lines,
            "-------------------- end of arguments ---------------------",
        ]
    )
