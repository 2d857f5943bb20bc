"""How a run file differs from what is published, for people. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from opsctl.core.errors import OpsctlError
from opsctl.run.state.revisions import Revision


def files_difference(published: Revision | None, files: Mapping[str, str]) -> str:
    """Unified differences, file by file, from the published revision to `files`; empty when there are none.

    Raises OpsctlError for a damaged revision.
    """
    pieces: list[str] = []
    for name, text in files.items():
        before = _text(published, name)
        if before != text:
            label = f"{published.name}/{name}" if published else "/dev/null"
            pieces += difflib.unified_diff(before.splitlines(True), text.splitlines(True), label, f"run file/{name}")
    return "".join(pieces)


def _text(published: Revision | None, name: str) -> str:
    if published is None:
        return ""
    if published.damage:
        raise OpsctlError(published.damage)
    return published.texts.get(name, "")
