"""Whether the exit margin leaves the trainer time to finish what it is at and save. Pure."""

from __future__ import annotations

from opsctl.errors import RunFileError
from opsctl.logs.records import Measured
from opsctl.runs.load import LoadedRun
from opsctl.slurm.durations import format_duration, parse_duration_s


def check_exit_margin(loaded: LoadedRun, measured: Measured) -> str | None:
    """A warning while some duration is unknown, None when all is well.

    In the worst case the margin begins just after an iteration has: that one, an evaluation and a save must fit.
    Durations measured in the training log count before those that `[expect]` plans with. Raises RunFileError when they
    do not fit.
    """
    expect = loaded.file.expect
    parts = {
        "one iteration": measured.seconds_per_iteration or expect.seconds_per_iteration,
        "the longest evaluation": 0.0
        if _never_evaluates(loaded)
        else measured.evaluation_seconds or expect.evaluation_seconds,
        "a save": measured.save_seconds or expect.save_seconds,
    }
    margin_s = parse_duration_s(loaded.file.slurm.exit_margin)
    needed_s = sum(seconds or 0.0 for seconds in parts.values())
    if needed_s > margin_s:
        known = " + ".join(f"{name} {seconds:.0f} s" for name, seconds in parts.items() if seconds)
        raise RunFileError(
            f"{loaded.path}: [slurm] exit_margin = {format_duration(margin_s)} is too short for {known}; "
            f"set at least {format_duration(needed_s + 1)}"
        )
    unknown = [name for name, seconds in parts.items() if seconds is None]
    if unknown:
        return (
            f"how long {' and '.join(unknown)} takes is not known yet: "
            f"is exit_margin = {format_duration(margin_s)} enough? [expect] can say"
        )
    return None


def _never_evaluates(loaded: LoadedRun) -> bool:
    return loaded.file.trainer.get("eval_iters") == 0
