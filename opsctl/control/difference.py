"""How a run file differs from what is published, for people. Pure but for reading the revision's files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from opsctl.errors import OpsctlError
from opsctl.records.revisions import Revision
from opsctl.records.state_files import read_text


def files_difference(published: Revision | None, files: Mapping[str, str]) -> str:
    """Unified differences, file by file, from the published revision to `files`; empty when there are none."""
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
    try:
        return read_text(published.root, published.folder / name) or ""
    except OSError as error:
        raise OpsctlError(f"cannot read {published.folder / name}: {error.strerror}") from None
