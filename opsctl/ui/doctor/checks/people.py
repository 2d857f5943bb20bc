"""Checks of the account: groups, umask, profiles; the scheduler and the alert channels."""

from __future__ import annotations

from datetime import timedelta

from opsctl.monitoring.checks.services import LATE
from opsctl.monitoring.finding import length_words
from opsctl.ui.doctor.check import AccountSeen, Check, DeskSeen, Result, Seen, missing, ok, optional, unknown


def _run_file(_tables: object, seen: Seen) -> Result | None:
    if seen.run_problem:
        return missing(seen.run_problem, "correct the run file; to see all problems: opsctl plan")
    return None if seen.run is None else ok(f"{seen.run.run.name} can be read")


def _group(found: AccountSeen, seen: Seen) -> Result | None:
    group = None if seen.run is None else seen.run.run.group
    if group is None:
        return None
    if found.group_problem:
        return missing(found.group_problem, f"newgrp {group}, or ask who keeps the group")
    return ok(f"{found.name} is in {group}")


def _umask(found: AccountSeen, seen: Seen) -> Result | None:
    """Check the umask. opsctl's own files are as open as their folder, but a user's own files follow the umask."""
    group = None if seen.run is None else seen.run.run.group
    if group is None:
        return None
    said = f"umask {found.umask:04o}, default group {found.default_group}"
    if found.umask & 0o070 or not found.umask & 0o002:
        return missing(
            f"{said}: what you make, the group {group} cannot change, or everybody can", "umask 0007 in ~/.bashrc"
        )
    if found.default_group != group:
        return optional(
            f"{said}: outside of the run's folder what you make is not {group}'s", f"newgrp {group} in ~/.bashrc"
        )
    return ok(said)


def _profiles(found: AccountSeen, _seen: Seen) -> Result | None:
    if found.profile_problem:
        return missing(found.profile_problem, "correct the profile")
    for path, why in found.profiles.items():
        if why:
            return missing(f"{path}: {why}, so no program that it names is run", f"chmod go-w {path}, and its folder")
    return (
        ok(", ".join(map(str, found.profiles)))
        if found.profiles
        else optional("there is no profile with settings for all runs")
    )


def _cron(found: DeskSeen, seen: Seen) -> Result | None:
    cron = found.cron
    if cron is None:
        return None
    if cron.problem:
        return unknown(cron.problem, f"opsctl cron status{cron.option}")
    if not cron.is_started:
        said = f"none is started in {cron.folder}: no scheduled checks, refills or syncs run"
        return optional(said, f"opsctl cron start{cron.option}")
    late = None if cron.heartbeat_at is None else seen.now - cron.heartbeat_at
    if late is None or late > timedelta(seconds=LATE * cron.period_s + 30):
        said = "has never ticked" if late is None else f"has not ticked for {length_words(late)}"
        return missing(
            f"the one in {cron.folder} {said}", f"opsctl cron status{cron.option}; opsctl cron start{cron.option}"
        )
    return ok(f"the one in {cron.folder} ticked {length_words(late)} ago")


def _channels(found: DeskSeen, _seen: Seen) -> Result | None:
    if not found.channels:
        return optional("no alert channel: findings are not sent to anyone", 'channels = ["..."] under [alerts]')
    return ok(f"{found.channels}; opsctl alerts test tries them")


def _hub(_tables: object, seen: Seen) -> Result | None:
    table = seen.tables.get("hub", {})
    has_reference = bool(table.get("token"))
    wanted = any(key == "repo" or key.endswith("_repo") for key in table)
    if not wanted:
        return optional("no repository: nothing of the run is on a hub", 'repo = "OWNER/NAME" under [hub]')
    if not (seen.has_hub_token or has_reference):
        return missing("no token for the hub", "opsctl hub login")
    return ok("a repository is named and there is a token; opsctl hub check asks the hub")


CHECKS = (
    Check("run file", "Can the run file be used?", _run_file),
    Check("group", "Is the account in the run's group, in this session too?", _group, "account"),
    Check("umask", "Can only the group change the account's new files?", _umask, "account"),
    Check("profiles", "Are the profiles right, and only their owner's and root's to change?", _profiles, "account"),
    Check("cron", "Does the pseudo-cron tick?", _cron, "desk"),
    Check("alert channels", "Are findings sent to a channel?", _channels, "desk"),
    Check("hub", "Is there a repository and a token? Does not contact the hub.", _hub),
)
