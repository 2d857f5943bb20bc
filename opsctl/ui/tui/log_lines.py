"""The log's newest lines on a screen that is narrower than they are: of an iteration what somebody looks for. Pure."""

from __future__ import annotations

from opsctl.core.output import printable
from opsctl.run.logs.lines import parse_line
from trainer.formats.logs.training_line import TrainingLine


def told_line(line: str, width: int) -> str:
    """The line as it is where it fits, and a longer one of an iteration in short; others the screen cuts."""
    plain = printable(line.replace("\t", " "))
    if len(plain) <= width:
        return plain
    record = parse_line(line)
    return _in_short(record) if isinstance(record, TrainingLine) else plain


def _in_short(line: TrainingLine) -> str:
    """What it says of loss, gradient norm and time, before its name runs out of room."""
    loss, norm, seconds = line.loss, line.grad_norm, line.seconds_per_iteration
    parts = [f"iteration {line.iteration}"]
    parts += [f"loss {loss:.5f}"] if loss is not None else ["no loss"]
    parts += [f"gradient norm {norm:.3f}"] if norm is not None else []
    parts += [f"{seconds:.3g} s"] if seconds is not None else []
    parts += [f"{line.skipped_iterations} skipped"] if line.skipped_iterations else []
    parts += [f"{line.nan_iterations} NaN"] if line.nan_iterations else []
    return " | ".join(parts)
