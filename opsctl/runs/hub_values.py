"""What the values of `[hub]` may be, beyond their types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.errors import RunFileError
from opsctl.runs.references import is_reference
from opsctl.runs.schema import HUB_CHECKPOINTS, HUB_KINDS
from opsctl.runs.shape import shown

_REPO = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_REPO_KEYS = ("repo", *(f"{kind}_repo" for kind in HUB_KINDS))


def check_hub(path: Path, hub: Mapping[str, Any]) -> None:
    """Raise RunFileError for the first value that cannot be. A token is never repeated, for it may be one."""
    for key in _REPO_KEYS:
        name = hub.get(key)
        if name is not None and not _is_repo(name):
            raise RunFileError(f'{path}: [hub] {key} = {shown(name)}: allowed is OWNER/NAME, as in "lab/tr1-13B-logs"')
    for kind in HUB_KINDS[:3]:
        if any(not pattern for pattern in hub.get(kind, ())):
            raise RunFileError(f"{path}: [hub] {kind} has an empty pattern, which matches no name")
    wrong = next((kind for kind in hub.get("mirror", ()) if kind not in HUB_KINDS), None)
    if wrong is not None:
        raise RunFileError(f"{path}: [hub] mirror has {shown(wrong)}: allowed are {', '.join(HUB_KINDS)}")
    how = hub.get("checkpoints")
    if how is not None and how not in HUB_CHECKPOINTS:
        allowed = ", ".join(HUB_CHECKPOINTS)
        raise RunFileError(f"{path}: [hub] checkpoints = {shown(how)}: allowed are {allowed}")
    token = hub.get("token")
    if token is not None and not is_reference(token):
        raise RunFileError(
            f'{path}: [hub] token is no reference: keep it in a file of your own (chmod 600) and write "file:PATH", '
            'or "env:NAME", "command:..."'
        )


def _is_repo(name: str) -> bool:
    return bool(_REPO.fullmatch(name)) and "--" not in name and ".." not in name and len(name) <= 96
