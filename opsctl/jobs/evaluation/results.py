"""The result of one checkpoint's evaluation, as it is stored in the run's folder and printed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from opsctl.core.files.state_files import read_state
from trainer.formats.json_text import Moment

#: All of it, beside a file for each task with every word of lm-eval's.
RESULTS = "results.json"


class TaskResult(Struct, frozen=True, kw_only=True):
    """One task that was wanted."""

    name: Annotated[str, Meta(description="Its name in lm-eval.")]
    state: Annotated[str, Meta(description="`done`, `failed`, `missing` (this lm-eval has none such) or `left`.")]
    error: Annotated[str, Meta(description="What failed.")] = ""
    seconds: Annotated[float, Meta(description="How long it took.")] = 0.0
    metrics: Annotated[
        dict[str, dict[str, float]],
        Meta(description="By the task, and those that it consists of: each metric, as lm-eval calls it."),
    ] = {}


class EvaluatedCheckpoint(Struct, frozen=True, kw_only=True):
    """The result of one checkpoint's evaluation: `results.json`."""

    run: Annotated[str, Meta(description="The run's name.")]
    iteration: Annotated[int, Meta(description="Iterations done when the checkpoint was saved.")]
    state: Annotated[str, Meta(description="`done`, `failed`, `there` (was done before), `busy` or `would evaluate`.")]
    consumed_train_samples: Annotated[int, Meta(description="Samples trained on by then.")] = 0
    of: Annotated[str, Meta(description="Checksum of the checkpoint's manifest.")] = ""
    folder: Annotated[str, Meta(description="Absolute path of the results.")] = ""
    began_at: Annotated[Moment | None, Meta(description="When this start of it began.")] = None
    ended_at: Annotated[Moment | None, Meta(description="When it ended.")] = None
    by: Annotated[str, Meta(description="Who did it where, as user@host.")] = ""
    job_id: Annotated[int, Meta(description="In which Slurm job; 0: in none.")] = 0
    python: Annotated[str, Meta(description="The Python that lm-eval ran in.")] = ""
    lm_eval: Annotated[str, Meta(description="Version of lm-eval.")] = ""
    settings: Annotated[dict[str, Any], Meta(description="What [evaluation] said.")] = {}
    tasks: Annotated[list[TaskResult], Meta(description="Each task that was wanted.")] = []
    detail: Annotated[str, Meta(description="What failed, or is missing.")] = ""


class Mark(Struct, frozen=True):
    """The digests that an answer must have to count."""

    of: str  # checksum of the checkpoint's manifest
    under: str  # `Settings.digest`


class _Said(Struct, frozen=True, kw_only=True):
    """The content of one task's file."""

    of: str
    under: str = ""
    error: str = ""
    seconds: float = 0.0
    results: dict[str, dict[str, Any]] = {}


def task_file(folder: Path, task: str) -> Path:
    """Return the file of lm-eval's full output on the task."""
    return folder / f"{task}.json"


def answered(root: Path, folder: Path, tasks: Sequence[str], mark: Mark) -> list[str]:
    """Those of which this very checkpoint's results under these settings are there."""
    return [task for task in tasks if (said := _said(root, folder, task, mark)) is not None and not said.error]


def collected(root: Path, folder: Path, tasks: Sequence[str], mark: Mark, missing: Collection[str]) -> list[TaskResult]:
    """Return the result of each task according to its file."""
    return [_result(task, _said(root, folder, task, mark), task in missing) for task in tasks]


def words_of(tasks: Sequence[TaskResult]) -> str:
    """Return a clause with the tasks that failed or are missing; empty if none."""
    parts = []
    for state, word in (("failed", "failed"), ("missing", "not in this lm-eval"), ("left", "not run")):
        found = [one for one in tasks if one.state == state]
        names = ", ".join(one.name + (f" ({one.error[:120]})" if one.error else "") for one in found[:4])
        if found:
            parts.append(f"{len(found)} {word}: {names}{', ...' if len(found) > 4 else ''}")
    return "; ".join(parts)


def _said(root: Path, folder: Path, task: str, mark: Mark) -> _Said | None:
    said = read_state(root, task_file(folder, task), _Said)
    return said if said is not None and Mark(said.of, said.under) == mark else None


def _result(task: str, said: _Said | None, is_missing: bool) -> TaskResult:
    state = "missing" if is_missing else "left" if said is None else "failed" if said.error else "done"
    metrics = {} if said is None or said.error else {of: _metrics(found) for of, found in said.results.items()}
    return TaskResult(
        name=task,
        state=state,
        error=said.error if said is not None else "",
        seconds=said.seconds if said is not None else 0.0,
        metrics=metrics,
    )


def _metrics(found: dict[str, Any]) -> dict[str, float]:
    """lm-eval names a number METRIC,FILTER; `none` is the filter that does nothing."""
    return {
        key.removesuffix(",none"): float(value)
        for key, value in found.items()
        if "," in key and isinstance(value, int | float) and not isinstance(value, bool)
    }
