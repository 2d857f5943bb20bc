"""What the values of the tables that are the desk's, and of `[array] keep_queued`, may be beyond their types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.core.errors import RunFileError
from opsctl.run.config.alert_urls import HOOK, form_problem, written_problem
from opsctl.run.config.hub_values import check_hub
from opsctl.run.config.schema import QUOTA_KINDS
from opsctl.run.config.secret_references import kind_of
from opsctl.run.config.toml_types import shown
from opsctl.slurm.cluster import BACKENDS
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s

_DURATIONS = {
    "watch": ("wait_most", "silent_most", "checkpoint_most", "full_within"),
    "alerts": ("escalate_after", "remind_after", "remind_most"),
    "hub": ("give_up_after",),
    "cron": ("time",),
    "jobs": ("time",),
}
#: (table, key) -> least, most.
_NUMBERS = {
    ("array", "keep_queued"): (0, 100),
    ("watch", "slower_percent"): (1, 1000),
    ("watch", "slower_node_percent"): (1, 1000),
    ("watch", "tflops_least"): (1e-9, 1e9),
    ("watch", "skipped_percent"): (0, 100),
    ("watch", "full_percent"): (1, 100),
    ("watch", "purge_days"): (1, 10_000),
    ("watch", "spare_nodes"): (0, 100_000),
    ("watch", "clock_seconds"): (0.1, 1e9),
    ("alerts", "per_hour"): (1, 10_000),
    ("hub", "checkpoints_every"): (1, 10**12),
    ("cron", "nice"): (0, 2**31 - 4),
    ("jobs", "nice"): (0, 2**31 - 4),
    ("nodes", "most_excluded_percent"): (0, 100),
}
_QUIET = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)*", re.ASCII)
_WHOSE = re.compile(r"user|(user|group|project):[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
_WORDS = {
    "cron": ("folder", "group", "partition", "account", "qos", "constraint"),
    "jobs": ("partition", "internet_partition", "account", "qos", "constraint"),
    "nodes": ("shared", "group"),
}


def check_desk(path: Path, written: Mapping[str, Any], profile: bool = False) -> None:
    """Raise RunFileError for the first value that cannot be; types are known to be right.

    A run file is published for its group, so none has a secret in it; whether a profile may is seen when it is used.
    """
    for table, keys in _DURATIONS.items():
        for key in keys:
            _check_duration(path, table, key, written.get(table, {}).get(key))
    for (table, key), (least, most) in _NUMBERS.items():
        value = written.get(table, {}).get(key)
        if value is not None and not least <= value <= most:
            raise RunFileError(f"{path}: [{table}] {key} = {shown(value)}: allowed is a number from {least} to {most}")
    quiet = written.get("alerts", {}).get("quiet")
    if quiet is not None and not _QUIET.fullmatch(quiet):
        raise RunFileError(f'{path}: [alerts] quiet = {shown(quiet)}: allowed are two times of day, as "22:00-07:00"')
    backend = written.get("cluster", {}).get("backend", BACKENDS[0])
    if backend not in BACKENDS:
        raise RunFileError(f"{path}: [cluster] backend = {shown(backend)}: allowed is one of {', '.join(BACKENDS)}")
    _check_channels(path, written.get("alerts", {}), may_have_secret=profile)
    _check_quota(path, written.get("watch", {}), profile)
    check_hub(path, written.get("hub", {}))
    support = written.get("nodes", {}).get("support")
    if support is not None and not _ADDRESS.fullmatch(support):
        raise RunFileError(f"{path}: [nodes] support = {shown(support)}: allowed is one mail address")
    for table, keys in _WORDS.items():
        for key in keys:
            _check_word(path, table, key, written.get(table, {}).get(key))


def _check_quota(path: Path, watch: Mapping[str, Any], profile: bool) -> None:
    for key in ("quota_command", "quota_pattern", "quota", "quota_of", "touch"):
        if key in watch and not profile:
            what = "is the site's to say" if key == "touch" else "names what is run"
            raise RunFileError(f"{path}: [watch] {key} {what}: it may stand in a profile only")
    if watch.get("quota", QUOTA_KINDS[0]) not in QUOTA_KINDS:
        raise RunFileError(
            f"{path}: [watch] quota = {shown(watch['quota'])}: allowed is one of {', '.join(QUOTA_KINDS)}"
        )
    for whose in watch.get("quota_of", ()):
        if not _WHOSE.fullmatch(whose):
            raise RunFileError(
                f'{path}: [watch] quota_of has {shown(whose)}: allowed are "user", "user:NAME", "group:NAME" and '
                '"project:NAME"'
            )
    if "quota_command" in watch and not watch["quota_command"]:
        raise RunFileError(f"{path}: [watch] quota_command is empty: allowed are a program and its arguments")
    try:
        re.compile(watch.get("quota_pattern") or "")
    except re.error as error:
        raise RunFileError(f"{path}: [watch] quota_pattern is no regular expression: {error}") from None


def _check_channels(path: Path, alerts: Mapping[str, Any], may_have_secret: bool) -> None:
    """Name the first that cannot be by its place, for it may be a secret."""
    for key in ("channels", "escalate_to"):
        for number, text in enumerate(alerts.get(key) or (), start=1):
            problem = written_problem(text, may_have_secret)
            if problem:
                raise RunFileError(f"{path}: [alerts] {key}, number {number}: {problem}")
    heartbeat = alerts.get("heartbeat")
    if heartbeat is not None:
        problem = form_problem(heartbeat) or written_problem(heartbeat, may_have_secret)
        if problem or kind_of(heartbeat) == HOOK:
            raise RunFileError(f"{path}: [alerts] heartbeat: {problem or 'a program is no heartbeat'}")


def _check_word(path: Path, table: str, key: str, word: str | None) -> None:
    if word is not None and (not word.strip() or not word.isprintable() or word.startswith("-")):
        raise RunFileError(f"{path}: [{table}] {key} = {shown(word)}: allowed is text on one line, not empty")


def _check_duration(path: Path, table: str, key: str, value: str | None) -> None:
    if value is None:
        return
    try:
        seconds = parse_duration_s(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 10 * 365 * 86400:
        raise RunFileError(f"{path}: [{table}] {key} = {shown(value)}: allowed is {DURATION_RULE}, up to ten years")
