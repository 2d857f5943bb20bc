"""Changes of the environment since the last attempt, as seen from this host, for submit and revise."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.attempts import events
from opsctl.run.attempts.table import in_a_clause, last_environment
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.environments.query import Asked, ask, why_not_started
from trainer.formats.attempt.environment import OF_NODES, differences

#: The time that a submission waits for the answer.
_TIMEOUT_S = 20.0


def changes_since_last(run: ExpandedRun, is_for_own_job: bool = False) -> tuple[str, ...]:
    """Return a line if the environment differs from the last attempt's.

    is_for_own_job: the caller is about to submit. Facts that only nodes have, driver and compiled kernels, are not
    compared. An environment that others can change is named instead of started.
    """
    try:
        last = last_environment(run.paths, events.read(run.paths))
    except OSError:
        return ()  # the command that needs the records reports the error
    if last is None:
        return ()
    when, before = f"since attempt {last[0].number}", last[1]
    if why := why_not_started(run.file, run.path, run.paths.output, is_for_own_job):
        return (f"changes of the environment {when} were not checked, because it is not started here: {why}",)
    asked = environment_here(run)
    if asked.found is None:
        return (f"changes of the environment {when} cannot be checked here: {asked.problem}",)
    # A host without environment modules cannot have the run's.
    ignored = OF_NODES | ({"modules"} if before.modules and not asked.found.modules else frozenset())
    changed = differences(before, asked.found, ignored)
    return (f"the environment has changed {when}, as seen from this host: {in_a_clause(changed)}",) if changed else ()


def environment_here(run: ExpandedRun, timeout_s: float = _TIMEOUT_S) -> Asked:
    """Return the environment that the run's next step would have on this host."""
    script = run.file.run.environment
    return ask(None if script is None else Path(script), run.file.env, timeout_s)
