"""Which keys a cron's jobs have: files of the account's, and what its login shell exports. No key is read."""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from os import geteuid
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.process import Overdue, run_program
from opsctl.run.config.load import LoadedRun
from opsctl.run.config.profile import profile
from opsctl.run.config.secret_references import kind_of
from opsctl.ui.doctor.observed import KeysSeen

#: What the programs that need keys look for in the environment, by whose keys they are.
VARIABLES = {
    "hub": ("HF_TOKEN", "HF_HOME", "HF_TOKEN_PATH"),
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
}
#: Where they look without any of these, below the home folder.
FILES = {
    "hub": ".cache/huggingface/token",
    "s3": ".aws/credentials",
    "gs": ".config/gcloud/application_default_credentials.json",
}
_LOGIN_S = 10.0


def keys(loaded: LoadedRun | None, environment: Mapping[str, str]) -> KeysSeen:
    """What of the keys in this environment a login shell has not, and which files are there."""
    token = _token(loaded, environment)
    asked = {name for names in VARIABLES.values() for name in names}
    if kind_of(token) == "env":
        asked.add(token.partition(":")[2])
    here = {name for name in asked if environment.get(name)}
    home = Path(environment.get("HOME", "/"))
    return KeysSeen(
        only_here=frozenset(here - _at_login(home) if here else ()),
        files=frozenset(whose for whose, file in FILES.items() if (home / file).is_file()),
        token=token,
    )


def _token(loaded: LoadedRun | None, environment: Mapping[str, str]) -> str:
    own = {} if loaded is None else loaded.file.hub
    try:
        of_the_profile = profile(environment).get("hub", {})
    except OpsctlError:  # which its own check says
        of_the_profile = {}
    return str({**of_the_profile, **own}.get("token") or "")


def _at_login(home: Path) -> set[str]:
    """Names of what the account's login shell exports; none where it does not say, as Slurm has none then."""
    account = pwd.getpwuid(geteuid())
    bare = {"HOME": str(home), "USER": account.pw_name, "LOGNAME": account.pw_name, "PATH": "/usr/bin:/bin"}
    try:
        ended = run_program([account.pw_shell or "/bin/sh", "-l", "-c", "env -0"], bare, _LOGIN_S)
    except (Overdue, OSError, ValueError):
        return set()
    return {line.partition(b"=")[0].decode(errors="replace") for line in ended.out.split(b"\0")}
