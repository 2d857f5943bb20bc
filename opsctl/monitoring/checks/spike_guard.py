"""What has the trainer's spike guard done, and does it suspect hardware?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.series import TOLD_FOR_S, as_it_stands, trained_s
from opsctl.monitoring.snapshot import Part, Snapshot
from trainer.formats.logs.guard_lines import SKIPPED, GuardLine, NotRolledBack, RolledBack, RunAgain, Unusual

CHECK = "spike_guard"
HELP = """What has the trainer's spike guard done, and does it suspect hardware?

1: updates were not made, the training went back to a checkpoint by itself, or had nothing to go back to. 2: a step that
was run again on the same data gave another loss or gradient norm; it names host and rank as far as they are known. Each
is told for six more hours of training.
"""
#: What is told one by one.
_NAMED = 5


def find(snapshot: Snapshot, settings: Settings) -> list[Finding]:
    """A finding for each rollback, one for all updates that were not made, one for all that hardware may have done."""
    if snapshot.is_finished:
        return []
    series = as_it_stands(snapshot.series)

    def is_new(line: GuardLine) -> bool:
        return trained_s([one for one in series if one.iteration > line.iteration]) <= TOLD_FOR_S

    told = [one for one in snapshot.guarded if is_new(one)]
    suspected = [one for one in told if isinstance(one, RunAgain) and one.is_hardware]
    skipped = [one for one in told if isinstance(one, Unusual) and one.done == SKIPPED]
    # The same again after a restart is the same, as it is now.
    ways_back = {one.iteration: one for one in told if isinstance(one, RolledBack | NotRolledBack)}
    return [
        *([_suspected(suspected, settings)] if suspected else []),
        *map(_way_back, ways_back.values()),
        *([_skipped(skipped)] if skipped else []),
    ]


def _suspected(lines: list[RunAgain], settings: Settings) -> Finding:
    newest = lines[-1]
    return Finding(
        CHECK,
        Severity.CRITICAL,
        f"iteration {newest.iteration}, run again on the same data, came out differently: hardware? {newest.why}",
        alert=settings.team,
        subject="hardware",
        evidence=tuple(f"iteration {one.iteration}: {one.why}" for one in lines[-_NAMED:]),
        todo="have that node tested and left out ([slurm] exclude); opsctl attempts says what ran where",
    )


def _way_back(line: RolledBack | NotRolledBack) -> Finding:
    subject = f"iteration {line.iteration}"
    if isinstance(line, NotRolledBack):
        text = f"the spike guard wanted to go back at iteration {line.iteration} and could not: {line.why}"
        todo = "opsctl checkpoints list: are there any from before, and are they sound? opsctl logs -f: does it go on?"
        return Finding(CHECK, Severity.WARNING, text, subject=subject, todo=todo)
    return Finding(
        CHECK,
        Severity.WARNING,
        f"the spike guard went back from iteration {line.iteration} to {line.to} and leaves out iterations "
        f"{line.first} to {line.last}",
        subject=subject,
        evidence=(line.why,),
        todo=f"opsctl logs -f: does it come past {line.last}? opsctl data inspect shows what was read there",
    )


def _skipped(lines: list[Unusual]) -> Finding:
    iterations = list(dict.fromkeys(one.iteration for one in lines))
    return Finding(
        CHECK,
        Severity.WARNING,
        f"the spike guard made no update at {_named(iterations)}",
        subject="skipped",
        evidence=tuple(
            f"iteration {one.iteration}: loss {one.loss:.4g}, gradient norm {one.grad_norm:.4g}"
            for one in lines[-_NAMED:]
        ),
        todo="opsctl logs -f; if they go on: other data, a lower learning rate, or --spike-guard rollback",
    )


def _named(iterations: list[int]) -> str:
    if len(iterations) == 1:
        return f"iteration {iterations[0]}"
    more = f" and {len(iterations) - _NAMED} before" if len(iterations) > _NAMED else ""
    return f"{len(iterations)} iterations: {', '.join(map(str, iterations[-_NAMED:]))}{more}"


DETECTOR = Detector(CHECK, find, Part.SERIES | Part.PROGRESS, HELP)
