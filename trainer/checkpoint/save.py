"""Saving a checkpoint so that a crash at any moment leaves one that loads.

Everything is written and fsynced in a folder of its own whose name begins with `.tmp-`; then come the manifest, the
rename to `global_stepN`, and last `latest`, itself by a rename. DeepSpeed alone writes `latest` before the last rank
is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.agreement import Refusal, from_first_rank
from trainer.checkpoint.writer import RecordingCheckpointEngine
from trainer.files import SHARED_FOLDER_MODE, fsync, make_shared_folder, write_atomically, write_json
from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import LATEST, MANIFEST, TEMPORARY, Manifest, tag_of
from trainer.say import say

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def save_checkpoint(
    engine: PipelineEngine,
    root: Path,
    manifest: Manifest,
    client_state: Mapping[str, Any],
    with_optimizer: bool = True,
) -> float:
    """Save under `root/global_stepN` and make it the latest. Collective; returns the milliseconds it took.

    `manifest` comes with no files; `client_state` goes into DeepSpeed's own files and must be plain data. Raises
    Refusal (on all ranks) or CheckpointError (on the rank that could not write; the others then lose their connection
    to it).
    """
    started = time.monotonic()
    first = dist.get_rank() == 0
    if first:
        say(f"saving checkpoint at iteration {manifest.iteration:7d} to {root}")
    temporary = root / f"{TEMPORARY}{tag_of(manifest.iteration)}"
    from_first_rank(lambda: _make_room(root), (OSError,))
    try:
        files = _write(engine, root, temporary.name, client_state, with_optimizer)
        from_first_rank(lambda: _publish(root, temporary, manifest, files), (OSError, CheckpointError))
    except (OSError, CheckpointError, Refusal):
        # On a full disk its room is what the record of this failure, and the next task, cannot do without.
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if first:
        say(f"  successfully saved checkpoint at iteration {manifest.iteration:7d} to {root}")
    return (time.monotonic() - started) * 1000


def _make_room(root: Path) -> None:
    """The folder, without what a crash left in it."""
    make_shared_folder(root)
    for leftover in root.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover)


def _write(
    engine: PipelineEngine, root: Path, tag: str, client_state: Mapping[str, Any], with_optimizer: bool
) -> dict[str, dict[str, Any]]:
    """Have DeepSpeed write its files into `root/tag`; sizes and checksums of all ranks' files, on every rank."""
    usual, recording = engine.checkpoint_engine, RecordingCheckpointEngine(with_optimizer)
    shards, engine.save_zero_checkpoint = engine.save_zero_checkpoint, engine.save_zero_checkpoint and with_optimizer
    engine.checkpoint_engine = recording
    try:
        engine.save_checkpoint(str(root), tag=tag, client_state=dict(client_state), save_latest=False)
    finally:
        engine.checkpoint_engine, engine.save_zero_checkpoint = usual, shards
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, recording.files)
    return {name: file for part in parts for name, file in sorted(part.items())}


def _publish(root: Path, temporary: Path, manifest: Manifest, files: dict[str, dict[str, Any]]) -> None:
    """On the first rank: check, describe, rename, point at it."""
    for name, file in files.items():
        size = (temporary / name).stat().st_size
        if size != file["bytes"]:
            raise CheckpointError(
                f"{temporary / name} has {size} bytes, {file['bytes']} were written: see the file system"
            )
    with contextlib.suppress(PermissionError):
        temporary.chmod(SHARED_FOLDER_MODE)
    write_json(temporary / MANIFEST, {**manifest.as_json(), "files": files})
    final = root / tag_of(manifest.iteration)
    if final.exists():
        _put_in_place_of(temporary, final)
    else:
        temporary.rename(final)
    fsync(root)
    write_atomically(root / LATEST, final.name)
    for replaced in root.glob(f"{TEMPORARY}*"):
        shutil.rmtree(replaced, ignore_errors=True)


def _put_in_place_of(new: Path, old: Path) -> None:
    """Swap the two folders' names in one step, so that `latest` never names nothing; `new` then holds the old one."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # a C library without it
        if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
    # A file system that cannot (NFS): two renames. A crash between them leaves the older one under its `.tmp-` name.
    aside = old.with_name(f"{TEMPORARY}replaced-{old.name}")
    old.rename(aside)
    new.rename(old)
