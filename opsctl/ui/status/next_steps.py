"""The next steps that `opsctl` without a command prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opsctl.core.output import printable, shortened
from opsctl.monitoring.checks.training import training
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.overview import OpenFinding, Overview
from opsctl.run.attempts.ending import AS_PLANNED
from opsctl.ui.status.screen import colour_of, headline, labelled, progress_text
from opsctl.ui.status.text import BOLD, RED, YELLOW, answer_age, paint

#: Of findings, and of runs known elsewhere, so many are shown.
_MOST = 4
_NAME = 30


@dataclass(frozen=True)
class Step:
    """A command, and what it is good for."""

    command: str
    what: str


_BEGIN = (
    Step("opsctl init NAME", "a new run folder from an example"),
    Step("opsctl local-cluster up", "a real Slurm on this machine, to try it on"),
)
_EVERYTHING = Step("opsctl help", "every command in a line")
_BY_STATE: dict[str, tuple[Step, ...]] = {
    "unsubmitted": (
        Step("opsctl plan", "sizes, days and layout; refuses a run that cannot work"),
        Step("opsctl doctor", "what is missing here, and the command that fixes it"),
        Step("opsctl submit", "put it into the queue"),
    ),
    "waiting": (
        Step("opsctl queue", "the jobs and what they wait for"),
        Step("opsctl status --watch", "stay and see it start"),
    ),
    "held": (
        Step("opsctl queue", "which jobs are held"),
        Step("opsctl request release-queued", "let them start, whatever their owner"),
    ),
    "finished": (
        Step("opsctl checkpoints list", "what there is"),
        Step("opsctl evaluate", "evaluate its checkpoints with lm-eval"),
        Step("opsctl export hf --output DIR", "convert the last checkpoint for transformers"),
    ),
    "absent": (
        Step("opsctl attempts", "what ran and how it ended"),
        Step("opsctl triage", "what killed it, which node, and what to do"),
        Step("opsctl submit", "resume from the last checkpoint"),
    ),
    "unknown": (
        Step("opsctl doctor", "why Slurm does not answer"),
        Step("opsctl status", "the state by the run's files"),
    ),
}
_ASK_SLURM = ("opsctl doctor", "opsctl submit")
_RUNNING = (
    Step("opsctl status --watch", "a screen that stays"),
    Step("opsctl logs --follow", "the training log as it grows"),
)
_STOPPED = (
    Step("opsctl submit", "continue from the last checkpoint"),
    Step("opsctl attempts", "what ran and how it ended"),
)
_SICK = (
    Step("opsctl triage", "what killed it, which node, and what to do"),
    Step("opsctl on-call", "the handover: past events and open problems"),
)


def steps_for(
    overview: Overview, findings: Sequence[OpenFinding], option: str = "", evaluates: bool = True
) -> list[Step]:
    """Return what to do next about a run, the most urgent first.

    option: what commands that ask Slurm need here, such as ` --cluster NAME`. evaluates: the run file has evaluations.
    """
    switch = overview.seen.kill_switch
    is_stopped = overview.state == "absent" and (bool(overview.seen.stopped_by) or _ended_as_planned(overview))
    steps = list(_STOPPED if is_stopped else _BY_STATE.get(overview.state, _RUNNING))
    # That a stopped training does not run needs no triage; any other critical finding does.
    critical = [one.finding.check for one in findings if one.severity is Severity.CRITICAL]
    if any(not (is_stopped and check == training.name) for check in critical):
        steps = [*_SICK, *steps]
    if switch is not None and switch.is_triggered and overview.state not in ("finished", "unsubmitted"):
        steps = [Step("opsctl kill-switch deactivate", "nothing trains before that"), *steps]
    published = overview.seen.published
    if published is not None and published.differs:
        steps.append(Step("opsctl revise", f"publish what you edited: {', '.join(published.differs)}"))
    fail_here = set() if evaluates else {"opsctl evaluate"}
    fail_here |= set() if any(not one.is_open for one in overview.seen.attempts) else {"opsctl triage"}
    steps = [step for step in steps if step.command not in fail_here]
    if overview.state != "unsubmitted":
        steps.append(Step("opsctl status", "all of it on one screen"))
    steps = [replace(step, command=step.command + option) if step.command in _ASK_SLURM else step for step in steps]
    return list({step.command: step for step in [*steps, _EVERYTHING]}.values())


def _ended_as_planned(overview: Overview) -> bool:
    """Return True if nothing failed: the last attempt ended by the kill switch, a request or a limit."""
    attempts = overview.seen.attempts
    return bool(attempts) and attempts[-1].reason in AS_PLANNED


def run_here(
    overview: Overview,
    findings: Sequence[OpenFinding],
    width: int,
    colour: bool,
    option: str = "",
    evaluates: bool = True,
) -> list[str]:
    """Return the run of this folder in a few lines, what is wrong with it, and what to do next; see `steps_for`."""
    name, said = shortened(overview.name, _NAME), printable(headline(overview))
    code = colour_of(overview)
    lines = [f"{paint(name, BOLD, colour)}  {paint(said, f'1;{code}', colour)}"]
    if age := answer_age(overview.seen.queue_age_s):
        lines += labelled([("slurm", age)], width)
    if overview.iteration is not None:
        lines += labelled([("progress", progress_text(overview))], width)
    for one in findings[:_MOST]:
        first, *more = labelled([(one.severity.name.lower(), one.finding.text)], width)
        word = one.severity.name.lower()
        lines += [paint(word, YELLOW if one.severity is Severity.WARNING else RED, colour) + first[len(word) :], *more]
        if one.finding.todo:
            lines += labelled([("", f"do: {one.finding.todo}")], width)
    if len(findings) > _MOST:
        lines += labelled([("", f"and {len(findings) - _MOST} more: opsctl status")], width)
    return [*lines, "", *_steps(steps_for(overview, findings, option, evaluates), width, colour)]


def run_that_cannot_be_read(problem: str, width: int, colour: bool) -> list[str]:
    """Return the lines for a run whose run file, or output folder, cannot be read."""
    steps = [
        Step("opsctl plan", "all that is wrong with the run file"),
        Step("opsctl doctor", "what is missing here, and the command that fixes it"),
        _EVERYTHING,
    ]
    return [*labelled([("cannot look", problem)], width), "", *_steps(steps, width, colour)]


def no_run_here(folder: str, known: Mapping[str, str], width: int, colour: bool) -> list[str]:
    """Return the lines for a folder without a run: the account's runs, or how to begin. known: name -> run file."""
    lines = [f"No run in {printable(folder)}."]
    steps = [*_BEGIN, _EVERYTHING]
    if known:
        newest = list(known.items())[: -_MOST - 1 : -1]
        more = f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
        names = [(("yours" if number == 0 else ""), f"{name}  {file}") for number, (name, file) in enumerate(newest)]
        lines += [*labelled(names, width), *(labelled([("", more.strip())], width) if more else [])]
        example = printable(newest[0][0])
        steps = [
            Step("opsctl status --all", "every run that you or your group has, worst first"),
            Step(f"opsctl status {example} --watch", "one of them, on a screen that stays"),
            *steps,
        ]
    return [*lines, "", *_steps(steps, width, colour)]


def _steps(steps: Sequence[Step], width: int, colour: bool) -> list[str]:
    longest = max(len(step.command) for step in steps)
    lines = [paint("Next:", BOLD, colour)]
    for step in steps:
        line = f"  {step.command:<{longest}}  {printable(step.what)}"
        lines.append(line if len(line) <= width else f"{line[: max(1, width - 1)]}…")
    return lines
