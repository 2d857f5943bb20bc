"""What changed since a run was last started, as it can be seen from here: said when it is submitted or revised."""

from __future__ import annotations

import sys
from pathlib import Path

from opsctl.attempts import events
from opsctl.attempts.environments import in_a_clause, last_environment
from opsctl.environments.asking import Asked, ask_python, ask_script
from opsctl.environments.starting import why_not_started
from opsctl.runs.expanded import ExpandedRun
from trainer.formats.environment import OF_NODES, Environment, differences

#: A submit waits for it no longer than that.
_TIMEOUT_S = 20.0


def changes_since_last(run: ExpandedRun, is_for_own_job: bool = False) -> tuple[str, ...]:
    """At most one line; nothing where no attempt said what it was started with, or nothing is seen to differ.

    is_for_own_job: whether the caller is about to submit. What only the nodes have, their driver and the kernels that
    are compiled there, is not compared. What others can change is not started but named (`starting`).
    """
    try:
        last = last_environment(run.paths, events.read(run.paths))
    except OSError:
        return ()  # whoever needs the records says so
    if last is None:
        return ()
    attempt, before = last
    since = f"since attempt {attempt.number}"
    if why := why_not_started(run.file, run.path, run.paths.output, is_for_own_job):
        return (f"what changed in the environment {since} was not looked at: it is not started here, {why}",)
    asked = environment_here(run)
    if asked.found is None:
        return (f"what changed in the environment {since} cannot be seen from here: {asked.problem}",)
    told = differences(before, asked.found, ignored_here(before, asked.found))
    return (f"the environment is not what it was {since}, as seen from here: {in_a_clause(told)}",) if told else ()


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
