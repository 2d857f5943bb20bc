"""Who runs this process, and for which job and revision: what a checkpoint says of who saved it and who started it."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer.formats.checkpoint.history import Saved, Start

#: Set for the ranks by opsctl's job.
ATTEMPT_FOLDER_VARIABLE = "OPSCTL_ATTEMPT_FOLDER"
REVISION_VARIABLE = "OPSCTL_REVISION"


def saved_now(environment: Mapping[str, str] = os.environ) -> Saved:
    """A save by this process, at this moment."""
    return Saved(**_origin(environment))


def started_now(environment: Mapping[str, str] = os.environ, **of_start: Any) -> Start:
    """A start by this process, at this moment; the fields that only the caller knows by name."""
    return Start(**_origin(environment), **of_start)


def _origin(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "at": datetime.now().astimezone().replace(microsecond=0),
        "user": _user(),
        "host": socket.gethostname(),
        "attempt": _job(environment),
        "revision": _revision(environment),
    }


def _user() -> str:
    """As the system knows the account, or `uid N` for one without a name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _job(environment: Mapping[str, str]) -> str | None:
    folder = environment.get(ATTEMPT_FOLDER_VARIABLE)
    return (Path(folder).name if folder else environment.get("SLURM_JOB_ID")) or None


def _revision(environment: Mapping[str, str]) -> int | None:
    number = environment.get(REVISION_VARIABLE, "")
    return int(number) if number.isascii() and number.isdigit() else None
