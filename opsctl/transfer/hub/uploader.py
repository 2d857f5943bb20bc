"""One uploader at a time for a run, over hosts: one of files, and one of checkpoints, which take a night.

Two of a kind would do no harm, only work: the repository takes commits in turn. On one host, and where locks reach
others, the kernel's lock decides. Where they do not, a heartbeat does.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError
from opsctl.core.files.heartbeats import beat, beating, file_servers_now_ns
from opsctl.core.files.state_files import locked, make_folder, read_state, remove, write_state
from opsctl.core.files.trusted import open_file, opened_folder
from opsctl.run.config.file_kinds import CHECKPOINTS
from opsctl.run.config.paths import RunPaths
from opsctl.transfer.hub.retry_policy import Patience
from trainer.formats.attempt.lease import HEARTBEAT_S, SILENT_S

FILES = "files"
#: How often it is looked whether the other one is done.
_LOOK_AGAIN_S = 2.0


class Busy(OpsctlError):
    """Somebody else is sending, and was until there was no time left; the text says who."""


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends, as the others read it."""

    by: str
    host: str
    token: str


@dataclass(frozen=True)
class Uploader:
    """This process, as the one that sends."""

    output: Path
    file: Path
    claim: _Claim

    def is_still(self) -> bool:
        """Whether nobody has taken it for dead and gone on in its place."""
        found = read_state(self.output, self.file, _Claim)
        return found is None or found.token == self.claim.token


@contextlib.contextmanager
def the_uploader(paths: RunPaths, lane: str, patience: Patience, every_s: float = HEARTBEAT_S) -> Iterator[Uploader]:
    """Be the one that sends while the block lasts, after waiting for another one. Raises Busy, OSError.

    lane: FILES or CHECKPOINTS. What another one sends meanwhile is in the ledger afterwards: look again.
    """
    make_folder(paths.output, paths.hub_uploaders)
    with contextlib.ExitStack() as held:
        _enter(held, paths, lane, patience)
        claim = _Claim(by=account_and_host(), host=socket.gethostname(), token=secrets.token_hex(8))
        uploader = Uploader(paths.output, _claim_of(paths, lane), claim)
        with contextlib.suppress(OSError):  # a full disk keeps nobody from sending: see the top
            write_state(paths.output, uploader.file, claim)
        held.callback(_give_back, uploader)
        held.enter_context(beating(partial(_stamp, uploader), every_s))
        yield uploader


@contextlib.contextmanager
def nobody_sends(paths: RunPaths, lane: str) -> Iterator[bool]:
    """Whether nobody does, and none may begin on this host while the block lasts. False where that cannot be told."""
    with contextlib.ExitStack() as held:
        is_quiet = False
        with contextlib.suppress(OpsctlError, OSError):
            held.enter_context(_lock(paths, lane))
            is_quiet = _other_host(paths, lane) is None
        yield is_quiet


def who_sends(paths: RunPaths) -> str | None:
    """Who is sending; None where nobody is, whatever a killed one left behind. For people."""
    return ", ".join(by for lane in (FILES, CHECKPOINTS) if (by := _who_sends(paths, lane))) or None


def _who_sends(paths: RunPaths, lane: str) -> str | None:
    claim = read_state(paths.output, _claim_of(paths, lane), _Claim)
    if claim is None:
        return None
    with nobody_sends(paths, lane) as is_quiet:
        return None if is_quiet else claim.by


def _claim_of(paths: RunPaths, lane: str) -> Path:
    return paths.hub_uploaders / f"{lane}.json"


def _lock(paths: RunPaths, lane: str) -> contextlib.AbstractContextManager[None]:
    return locked(paths.output, paths.hub_uploaders / f"{lane}.lock", 0, "send to the hub")


def _enter(held: contextlib.ExitStack, paths: RunPaths, lane: str, patience: Patience) -> None:
    """Have the lock, while no other host's heartbeat goes on. Raises Busy."""
    said = False
    while True:
        with contextlib.ExitStack() as trying:
            try:
                trying.enter_context(_lock(paths, lane))
                other = _other_host(paths, lane)
                why = f"{other} is sending to the hub" if other else ""
            except OpsctlError as busy:
                why = str(busy)
            if not why:
                held.push(trying.pop_all())
                return
        if patience.left_s <= _LOOK_AGAIN_S:
            raise Busy(why)
        if not said:
            patience.say(f"waiting: {why}")
            said = True
        patience.sleep(_LOOK_AGAIN_S)


def _give_back(uploader: Uploader) -> None:
    with contextlib.suppress(OSError):
        if uploader.is_still():
            remove(uploader.output, uploader.file)


def _stamp(uploader: Uploader) -> None:
    if uploader.is_still():
        beat(uploader.output, uploader.file)


def _other_host(paths: RunPaths, lane: str) -> str | None:
    """Who sends on another host and is not silent; on this one the lock has said it."""
    claim = _claim_of(paths, lane)
    found = read_state(paths.output, claim, _Claim)
    if found is None or found.host == socket.gethostname():
        return None
    try:
        with opened_folder(paths.output, claim.parent) as (folder, _):
            fd = open_file(paths.output, claim)
            try:
                beaten_ns = os.fstat(fd).st_mtime_ns
            finally:
                os.close(fd)
            now_ns = file_servers_now_ns(folder, claim)
    except FileNotFoundError:
        return None
    return found.by if now_ns is None or now_ns - beaten_ns < SILENT_S * 1e9 else None
