"""The evaluations in `status`: the last one that ended, and those that run or were given up."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.errors import file_problem
from opsctl.core.timestamps import iso
from opsctl.jobs.evaluation.records import MOST_TRIES, Evaluated, read, standing
from opsctl.run.config.paths import RunPaths
from trainer.formats.checkpoint.manifest import tag_of
from trainer.formats.json_text import Moment


class EvaluationSeen(Struct, frozen=True, kw_only=True):
    """The state of the evaluations of the run's checkpoints."""

    iteration: Annotated[int | None, Meta(description="Checkpoint of the newest evaluation.")] = None
    state: Annotated[str | None, Meta(description="`done` or `failed`.")] = None
    ended_at: Annotated[Moment | None, Meta(description="When.")] = None
    tasks: Annotated[int, Meta(description="Tasks that were wanted of it.")] = 0
    answered: Annotated[int, Meta(description="Tasks that were answered.")] = 0
    detail: Annotated[str, Meta(description="Failed and missing tasks.")] = ""
    open: Annotated[list[int], Meta(description="Checkpoints with an evaluation that is queued or running.")] = []
    given_up: Annotated[
        list[int], Meta(description="Checkpoints that failed three times; the schedule does not try them again.")
    ] = []
    told: Annotated[str, Meta(description="The same in words.")] = ""


def evaluations_seen(paths: RunPaths) -> EvaluationSeen | None:
    """None where nothing was ever to be evaluated."""
    try:
        lines = read(paths)
    except OSError as error:
        return EvaluationSeen(told=f"cannot be seen: {file_problem(error, paths.evaluations)}")
    return seen_in(lines, _over(paths, lines)) if lines else None


def _over(paths: RunPaths, lines: list[Evaluated]) -> set[int]:
    """Return iterations with nothing open: the checkpoint is gone, or the caller's command has ended."""
    last = {line.iteration: line.errand for line in lines if line.what in ("asked", "begun")}
    ended = {name for name in last.values() if name and _has_ended(name)}
    return {
        iteration
        for iteration, name in last.items()
        if name in ended or not (paths.checkpoints / tag_of(iteration)).exists()
    }


def _has_ended(name: str) -> bool:
    """Return False too for another account's command, which cannot be read."""
    # Few runs are evaluated by commands, and every status asks.
    from opsctl.jobs.background.records import command_records

    command = command_records().read(name)
    return command is not None and not command.is_open


def seen_in(lines: list[Evaluated], over: Collection[int] = ()) -> EvaluationSeen:
    """Summarise the records. Iterations in `over` are not open. Pure."""
    ended = [line for line in lines if line.what in ("done", "failed")]
    newest = {line.iteration: line.of for line in lines}
    stands = {iteration: standing(lines, iteration, of) for iteration, of in newest.items()}
    is_open = sorted(
        iteration
        for iteration, one in stands.items()
        if iteration not in over and (one.asked is not None or (one.last is not None and one.last.what == "begun"))
    )
    given_up = sorted(iteration for iteration, one in stands.items() if one.is_given_up and iteration not in is_open)
    last = max(ended, key=lambda line: line.at) if ended else None
    parts = []
    if last is not None:
        of = f"{last.answered} of {last.tasks} tasks"
        said = f"iteration {last.iteration} {last.what}, {of}, at {iso(last.at, 'minutes')}"
        parts.append(f"{said} ({last.detail})" if last.detail else said)
    if is_open:
        parts.append(f"running or queued: {', '.join(map(str, is_open))}")
    if given_up:
        parts.append(f"tried {MOST_TRIES} times without success: {', '.join(map(str, given_up))}")
    return EvaluationSeen(
        iteration=last.iteration if last else None,
        state=last.what if last else None,
        ended_at=last.at if last else None,
        tasks=last.tasks if last else 0,
        answered=last.answered if last else 0,
        detail=last.detail if last else "",
        open=is_open,
        given_up=given_up,
        told="; ".join(parts),
    )
