"""What the values of `[hub]` may be, beyond their types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.core.errors import RunFileError
from opsctl.run.config.file_kinds import KINDS, KINDS_OF_FILES
from opsctl.run.config.schema import HUB_CHECKPOINTS
from opsctl.run.config.secret_references import is_reference
from opsctl.run.config.toml_types import shown

_REPO = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_REPO_KEYS = ("repo", *(f"{kind}_repo" for kind in KINDS))


def check_hub(path: Path, hub: Mapping[str, Any]) -> None:
    """Raise RunFileError for the first value that cannot be. A token is never repeated, for it may be one."""
    for key in _REPO_KEYS:
        name = hub.get(key)
        if name is None or _is_repo(name):
            continue
        if "://" in name:  # not repeated: it may have a password in it
            raise RunFileError(
                f"{path}: [hub] {key} is a URL, and git servers are not supported: allowed is OWNER/NAME of a hub; "
                "HF_ENDPOINT names a hub that is not huggingface.co"
            )
        raise RunFileError(f'{path}: [hub] {key} = {shown(name)}: allowed is OWNER/NAME, as in "lab/tr1-13B-logs"')
    for kind in KINDS_OF_FILES:
        if any(not pattern for pattern in hub.get(kind, ())):
            raise RunFileError(f"{path}: [hub] {kind} has an empty pattern, which matches no name")
    wrong = next((kind for kind in hub.get("mirror", ()) if kind not in KINDS_OF_FILES), None)
    if wrong is not None:
        why = ": what prune removes here stays there" if wrong in KINDS else ""
        raise RunFileError(f"{path}: [hub] mirror has {shown(wrong)}{why}: allowed are {', '.join(KINDS_OF_FILES)}")
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
    if name.endswith(".git"):  # the hub takes no such name
        return False
    return bool(_REPO.fullmatch(name)) and "--" not in name and ".." not in name and len(name) <= 96
