"""Is the run file what the tasks will read?"""

from __future__ import annotations

from opsctl.watch.detector import Detector, Settings
from opsctl.watch.finding import Finding, Severity
from opsctl.watch.snapshot import Part, Snapshot

CHECK = "unpublished"


def find(snapshot: Snapshot, _settings: Settings) -> list[Finding]:
    """A warning about an edit that nobody published, or that nobody can."""
    published = snapshot.published
    if published is None or not (published.problem or published.differs):
        return []
    text = "the run file is edited, not published: opsctl revise"
    if published.problem:
        text = f"the run file is edited and cannot be published: {published.problem}"
    return [Finding(CHECK, Severity.WARNING, text)]


DETECTOR = Detector(CHECK, find, Part.RUN_FILE)
