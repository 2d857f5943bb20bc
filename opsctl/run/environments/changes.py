"""Changes of the environment since the last attempt, as seen from this host, for submit and revise."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.attempts import events
from opsctl.run.attempts.table import in_a_clause, last_environment
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.paths import RunPaths
from opsctl.run.environments.query import Asked, ask, why_not_started
from opsctl.run.state.rehearsals import rehearsed_as_now
from trainer.formats.attempt.environment import OF_NODES, Environment, differences

#: The time that a submission waits for the answer.
_TIMEOUT_S = 20.0


def changes_since_last(run: ExpandedRun, is_for_own_job: bool = False) -> tuple[str, ...]:
    """Return a line for the last attempt, and one for the rehearsal of the current run file, if anything differs.

    is_for_own_job: the caller is about to submit. Facts that only nodes have, driver and compiled kernels, are not
    compared. An environment that others can change is named instead of started.
    """
    known = [(when, one) for when, one in (_at_last_attempt(run), _at_rehearsal(run)) if one is not None]
    if not known:
        return ()
    if why := why_not_started(run.file, run.path, run.paths.output, is_for_own_job):
        return (f"changes of the environment {known[0][0]} were not checked, because it is not started here: {why}",)
    asked = environment_here(run)
    if asked.found is None:
        return (f"changes of the environment {known[0][0]} cannot be checked here: {asked.problem}",)
    lines = []
    for when, before in known:
        # A host without environment modules cannot have the run's.
        ignored = OF_NODES | ({"modules"} if before.modules and not asked.found.modules else frozenset())
        if changed := differences(before, asked.found, ignored):
            lines.append(f"the environment has changed {when}, as seen from this host: {in_a_clause(changed)}")
    return tuple(lines)


def _at_last_attempt(run: ExpandedRun) -> tuple[str, Environment | None]:
    try:
        last = last_environment(run.paths, events.read(run.paths))
    except OSError:
        return "", None  # the command that needs the records reports the error
    return (f"since attempt {last[0].number}", last[1]) if last is not None else ("", None)


def _at_rehearsal(run: ExpandedRun) -> tuple[str, Environment | None]:
    """Return the environment of the rehearsal of the current run file; None if unknown."""
    if run.file.run.rehearses is not None:
        return "", None
    try:
        line = rehearsed_as_now(run.file, run.paths)
        if line is None or not line.environment:
            return "", None
        paths = RunPaths(Path(line.rehearsal))
        its_own = [one for one in events.read(paths) if one.environment == line.environment]
    except OSError:
        return "", None
    found = last_environment(paths, its_own)
    return f"since its rehearsal in {line.rehearsal}", found[1] if found is not None else None


def environment_here(run: ExpandedRun, timeout_s: float = _TIMEOUT_S) -> Asked:
    """Return the environment that the run's next step would have on this host."""
    script = run.file.run.environment
    return ask(None if script is None else Path(script), run.file.env, timeout_s)
