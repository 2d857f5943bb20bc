"""Can this run be? Every reason why not, before anything is submitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opsctl.errors import RunFileError
from opsctl.output import printable
from opsctl.runs.data_files import data_problems, share_problems
from opsctl.runs.expansion import unset_variables
from opsctl.runs.load import LoadedRun, expand
from opsctl.runs.options import combination_problems, option
from opsctl.runs.trainer_arguments import layout_of
from opsctl.slurm.durations import parse_duration_s

MOST_RAMP_STAGES = 10_000


@dataclass(frozen=True)
class Findings:
    """What is wrong with a run, one line each. Problems forbid it; warnings do not."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check_run(loaded: LoadedRun, nodes: int | None = None, files: bool = True) -> list[str]:
    """The warnings of a run on `nodes` nodes (default: the run file's). Raises RunFileError with its first problem.

    files: False makes warnings of files that are missing or damaged, for who only wants to look at a script.
    """
    findings = find_problems(expand(loaded), nodes, files)
    if findings.problems:
        more = len(findings.problems) - 1
        rest = f" (and {more} more: opsctl plan shows all)" if more else ""
        raise RunFileError(f"{loaded.path}: {findings.problems[0]}{rest}")
    return list(findings.warnings)


def find_problems(loaded: LoadedRun, nodes: int | None = None, files: bool = True) -> Findings:
    """Every problem and warning; what is wrong with files is a warning when `files` is False.

    Where `${VAR}` is not set here, no file is looked at, and a warning says so.
    """
    options = all_options(loaded)
    problems = _layout_problems(loaded, options, nodes)
    warnings = []
    if not loaded.file.checkpoints.get("save_interval"):
        problems.append("[checkpoints] save_interval is missing: iterations between checkpoints")
    unset = sorted({name for text in _texts(loaded) for name in unset_variables(text, loaded.variables())})
    if unset:
        names = ", ".join(f"${{{name}}}" for name in unset)
        warnings.append(f"not set here: {names}; no file was looked at, and a submit needs every variable set")
    else:
        expanded = expand(loaded)
        in_files = data_problems(expanded.file.data, options.get("seq_length"))
        found = _environment_problems(expanded) + (in_files or share_problems(all_options(expanded)))
        if files:
            problems += found
        else:
            warnings += found
    margin_problems, margin_warnings = _margin(loaded, options)
    return Findings(
        tuple(printable(text) for text in problems + margin_problems),
        tuple(printable(text) for text in warnings + margin_warnings),
    )


def all_options(loaded: LoadedRun) -> dict[str, Any]:
    """The trainer's options of the three tables together."""
    return {**loaded.file.trainer, **loaded.file.data, **loaded.file.checkpoints}


def exit_duration_minutes(loaded: LoadedRun) -> int:
    """Minutes after which the trainer saves and leaves: the time limit less the margin, rounded down, at least one."""
    slurm = loaded.file.slurm
    return max(1, (parse_duration_s(slurm.time) - parse_duration_s(slurm.exit_margin)) // 60)


def exit_margin_problem(
    margin_s: float, iteration_s: float | None, evaluation_s: float | None, save_s: float | None
) -> str | None:
    """Why leaving `margin_s` seconds before the limit is too late, or None. A part that is None counts nothing.

    The trainer looks at the clock between iterations: at worst an iteration, the longest evaluation, a save follow.
    """
    needed = sum(part or 0.0 for part in (iteration_s, evaluation_s, save_s))
    if margin_s >= needed:
        return None
    parts = (("an iteration", iteration_s), ("an evaluation", evaluation_s), ("a save", save_s))
    sum_text = " + ".join(f"{name} {_seconds(part)}" for name, part in parts if part)
    minutes, seconds = divmod(math.ceil(needed), 60)
    return (
        f"[slurm] exit_margin of {_seconds(margin_s)} is too short: {sum_text} = {_seconds(needed)}; "
        f'set exit_margin = "{minutes}:{seconds:02d}" or more'
    )


def _layout_problems(loaded: LoadedRun, options: Mapping[str, Any], nodes: int | None) -> list[str]:
    try:
        world_size = layout_of(loaded, nodes).world_size
    except RunFileError as error:
        without_path = str(error).removeprefix(f"{loaded.path}: ")
        return [f"[slurm] {without_path}", *combination_problems(options, None)]
    return combination_problems(options, world_size) + _ramp_problems(options) + _length_problems(options)


def _ramp_problems(options: Mapping[str, Any]) -> list[str]:
    """A ramp of so many stages is a slip, and walking it would take minutes."""
    ramp, batch = options.get("rampup_batch_size"), options.get("global_batch_size")
    if not ramp or not batch or (batch - ramp[0]) // ramp[1] <= MOST_RAMP_STAGES:
        return []
    stages = (batch - ramp[0]) // ramp[1]
    return [
        f"[trainer] rampup_batch_size has {stages:,} stages, more than {MOST_RAMP_STAGES:,}; give a larger increment"
    ]


def _length_problems(options: Mapping[str, Any]) -> list[str]:
    """A training that is over before its first step."""
    samples, batch = options.get("train_samples"), options.get("global_batch_size")
    first = (options.get("rampup_batch_size") or [batch])[0]
    if not samples or not first or samples >= first:
        return []
    return [f"[trainer] train_samples {samples} make no single step of {first} samples; train longer"]


def _environment_problems(expanded: LoadedRun) -> list[str]:
    script = expanded.file.run.environment
    if script is None or (expanded.folder / script).is_file():
        return []
    return [
        f"[run] environment: no file {script}; it is sourced on every node, leave it out if there is nothing to set"
    ]


def _texts(loaded: LoadedRun) -> list[str]:
    """Every text of the run file in which a variable may stand."""
    file = loaded.file
    values: list[Any] = [file.run.output, file.run.environment, *file.env.values(), *all_options(loaded).values()]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for item in flat if isinstance(item, str)]


def _margin(loaded: LoadedRun, options: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The exit margin against what `[expect]` reckons with."""
    expect, margin_s = loaded.file.expect, parse_duration_s(loaded.file.slurm.exit_margin)
    evaluates = option(options, "eval_iters") > 0
    known = {
        "seconds_per_iteration": expect.seconds_per_iteration,
        "evaluation_seconds": expect.evaluation_seconds if evaluates else 0.0,
        "save_seconds": expect.save_seconds,
    }
    problem = exit_margin_problem(margin_s, *known.values())
    if problem:
        return [problem], []
    unknown = [key for key, value in known.items() if value is None]
    if not unknown:
        return [], []
    return [], [
        f"exit_margin of {_seconds(margin_s)} is not checked in full: give {', '.join(unknown)} under [expect], "
        "or let the log measure it"
    ]


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.3g} s"
