"""Is the run where its id was made, and where its tasks look for it?"""

from __future__ import annotations

import shlex

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.state.identity import Standing

CHECK = "identity"
HELP = """Is the run where its id was made, and where its tasks look for it?

1: this is a copy, or tasks in the queue look in the folder that it was moved from.
"""


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning in a copy, or where tasks in the queue look for the run in the folder that it was moved from."""
    found = snapshot.whereabouts
    if found is None:
        return []
    if found.place.standing is Standing.COPY:
        # A submit of a finished run is refused.
        text, todo = "opsctl submit makes it a run of its own", "opsctl submit"
        if snapshot.is_finished:
            text = "it is finished, so there is nothing to submit"
            todo = (
                "to train it further, raise train_samples, train_tokens or train_iters in the run file; opsctl submit"
            )
        text = f"{found.here} is {found.place.describe()}; {text}"
        return [Finding(CHECK, Severity.WARNING, text, subject="copy", todo=todo)]
    texts: dict[str, str] = {}
    if found.place.standing is Standing.UNCLEAR:
        texts["unclear"] = f"{found.here} is {found.place.describe()}; opsctl submit says what to do"
    for folder in dict.fromkeys(folder for folder, _ in found.elsewhere):
        tasks = ", ".join(job.display_id for where, job in found.elsewhere if where == folder)
        link = shlex.join(["ln", "-s", str(found.here), folder])
        texts[folder] = f"{tasks} was submitted from {folder} and looks there: {link}, or opsctl revise --resubmit"
    return [Finding(CHECK, Severity.WARNING, text, subject=subject) for subject, text in texts.items()]


_NEEDS = Part.QUEUE | Part.PROGRESS
DETECTOR = Detector(CHECK, find, _NEEDS, HELP, can_do_without=_NEEDS)
