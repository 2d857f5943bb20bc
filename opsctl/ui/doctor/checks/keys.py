"""Keys for what the cron does by itself: its jobs have no shell's variables."""

from __future__ import annotations

from opsctl.run.config.secret_references import kind_of
from opsctl.ui.doctor.check import Check, KeysSeen, Result, Seen, missing, ok
from opsctl.ui.doctor.sources import FILES, VARIABLES

_SCHEMES = {"s3": "s3", "gs": "gs", "gcs": "gs"}
_WHAT = {"hub": "syncs to the hub", "s3": "backups to S3", "gs": "backups to GCS"}
_COMMANDS = {
    "hub": "env -u HF_TOKEN -u HF_HOME -u HF_TOKEN_PATH opsctl hub login",
    "s3": "aws configure",
    "gs": "gcloud auth application-default login",
}


def _keys(found: KeysSeen, seen: Seen) -> Result | None:
    if seen.desk is None or seen.desk.cron is None or not seen.desk.cron.is_started:
        return None
    needed = _needed(seen)
    lacking = [(whose, name) for whose in needed if (name := _only_here(found, whose))]
    if not needed:
        return None
    if not lacking:
        return ok("what the cron does by itself needs no variable of this shell's")
    said = "; ".join(f"{_WHAT[whose]} by the cron have no {name}: only this shell has it" for whose, name in lacking)
    return missing(said, "; ".join(_todo(found, whose) for whose, _ in lacking))


def _needed(seen: Seen) -> list[str]:
    """Return the services whose keys the run's syncs and backups need."""
    hub, to = seen.tables.get("hub", {}), seen.tables.get("backup", {}).get("to", ())
    wants_hub = any(key == "repo" or key.endswith("_repo") for key in hub)
    schemes = {str(one).partition("://")[0] for one in (to if isinstance(to, list | tuple) else (to,))}
    return [*(["hub"] if wants_hub else []), *sorted({_SCHEMES[one] for one in schemes if one in _SCHEMES})]


def _only_here(keys: KeysSeen, whose: str) -> str:
    """Return the variable that the scheduler's jobs would lack; empty if none."""
    if whose == "hub" and keys.token:
        name = keys.token.partition(":")[2]
        return name if kind_of(keys.token) == "env" and name in keys.only_here else ""
    if whose in keys.files:
        return ""
    return next((name for name in VARIABLES[whose] if name in keys.only_here), "")


def _todo(keys: KeysSeen, whose: str) -> str:
    if whose == "hub" and keys.token:
        return 'token = "file:PATH" under [hub], a file of yours (chmod 600)'
    return f"{_COMMANDS[whose]}, which keeps it in ~/{FILES[whose]}"


CHECKS = (Check("the cron's keys", "Have the cron's syncs and backups the keys that this shell has?", _keys, "keys"),)
