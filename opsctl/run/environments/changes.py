"""What changed since a run was last started, as it can be seen from here: said when it is submitted or revised."""

from __future__ import annotations

import sys
from pathlib import Path

from opsctl.run.attempts import events
from opsctl.run.attempts.table import in_a_clause, last_environment
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.paths import RunPaths
from opsctl.run.environments.permission import why_not_started
from opsctl.run.environments.query import Asked, ask_python, ask_script
from opsctl.run.state.rehearsals import rehearsed_as_now
from trainer.formats.attempt.environment import OF_NODES, Environment, differences

#: A submit waits for it no longer than that.
_TIMEOUT_S = 20.0


def changes_since_last(run: ExpandedRun, is_for_own_job: bool = False) -> tuple[str, ...]:
    """A line on the last attempt and one on the rehearsal of what the run says now, each where anything differs.

    Nothing where neither said what it was started with. is_for_own_job: whether the caller is about to submit. What
    only the nodes have, their driver and the kernels that are compiled there, is not compared. What others can change
    is not started but named (`starting`).
    """
    known = [(when, one) for when, one in (_at_last_attempt(run), _at_rehearsal(run)) if one is not None]
    if not known:
        return ()
    if why := why_not_started(run.file, run.path, run.paths.output, is_for_own_job):
        return (f"what changed in the environment {known[0][0]} was not looked at: it is not started here, {why}",)
    asked = environment_here(run)
    if asked.found is None:
        return (f"what changed in the environment {known[0][0]} cannot be seen from here: {asked.problem}",)
    lines = []
    for when, before in known:
        told = differences(before, asked.found, ignored_here(before, asked.found))
        if told:
            lines.append(f"the environment is not what it was {when}, as seen from here: {in_a_clause(told)}")
    return tuple(lines)


def _at_last_attempt(run: ExpandedRun) -> tuple[str, Environment | None]:
    try:
        last = last_environment(run.paths, events.read(run.paths))
    except OSError:
        return "", None  # whoever needs the records says so
    return (f"since attempt {last[0].number}", last[1]) if last is not None else ("", None)


def _at_rehearsal(run: ExpandedRun) -> tuple[str, Environment | None]:
    """What the rehearsal of what the run says now was started with; None where that is no longer to be seen."""
    if run.file.run.rehearses is not None:
        return "", None
    try:
        line = rehearsed_as_now(run.file, run.paths)
        paths = RunPaths(Path(line.rehearsal)) if line is not None else None
        attempts = events.read(paths) if paths is not None else []
    except OSError:
        return "", None
    if line is None or paths is None or not line.environment:
        return "", None
    its_own = [one for one in attempts if one.environment == line.environment]
    found = last_environment(paths, its_own)
    return f"since its rehearsal in {line.rehearsal}", found[1] if found is not None else None


def environment_here(run: ExpandedRun, timeout_s: float = _TIMEOUT_S) -> Asked:
    """What the run's next step would find, were it started on this host."""
    script = run.file.run.environment
    if script is None:
        return ask_python(sys.executable, run.file.env, timeout_s)
    return ask_script(Path(script), run.file.env, timeout_s)


def ignored_here(before: Environment, here: Environment) -> frozenset[str]:
    """What a host that is no node of the run's cannot tell; modules where it has no system of them."""
    without_modules = before.modules and not here.modules
    return OF_NODES | ({"modules"} if without_modules else frozenset())
