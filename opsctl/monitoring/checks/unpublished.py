"""Is the run file what the tasks will read?"""

from __future__ import annotations

from opsctl.monitoring.check import Detector, Settings
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Part, Snapshot

CHECK = "unpublished"
HELP = """Is the run file what the tasks will read?

1: it was edited and nobody has published that, or it cannot be published.
"""


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning about an edit that nobody published, or that nobody can."""
    published = snapshot.published
    if published is None or not (published.problem or published.differs):
        return []
    text = "the run file is edited, not published: opsctl revise"
    if published.problem:
        text = f"the run file is edited and cannot be published: {published.problem}"
    evidence = (
        f"{published.name}, published by {published.by}, is what tasks read",
        *([f"differs in {', '.join(published.differs)}"] if published.differs else []),
    )
    todo = "opsctl revise" if not published.problem else "opsctl plan says what is wrong; then opsctl revise"
    return [Finding(CHECK, Severity.WARNING, text, evidence=evidence, todo=todo)]


DETECTOR = Detector(CHECK, find, Part.RUN_FILE, HELP)
