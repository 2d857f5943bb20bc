"""Saving a checkpoint so that a crash at any moment leaves one that loads: snapshot, write, publish.

Everything is written and fsynced in a folder of this save's own, whose name begins with `.tmp-`; then come the
manifest, the rename to `global_stepN`, and last `latest`, itself by a rename. DeepSpeed alone writes `latest` before
the last rank is done.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.destination import Destination
from trainer.checkpoint.host_copies import HostCopies
from trainer.checkpoint.publish import make_room, publish
from trainer.checkpoint.snapshot import snapshot
from trainer.checkpoint.under_way import BackgroundWrite, SaveTimes, SaveUnderWay
from trainer.checkpoint.write import write
from trainer.core.console import say
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.logs.log_lines import CheckpointSaved, CheckpointSaving, write_checkpoint_line


def save_checkpoint(
    engine: PipelineEngine,
    destination: Destination,
    manifest: Manifest,
    client_state: Mapping[str, Any],
    with_optimizer: bool = True,
) -> SaveTimes:
    """Save as `global_stepN` and make it the latest. Collective.

    `manifest` comes with no files; `client_state` goes into DeepSpeed's own files and must be plain data. Raises
    Refusal on every rank when one of them could not write, Overtaken when another writer has this training: nothing is
    left of the save then.
    """
    started = time.monotonic()
    name = _make_room(destination, manifest)
    taken = snapshot(engine, client_state, with_optimizer)
    publish(destination, name, manifest, lambda: write(taken, destination.folder.place() / name))
    if dist.get_rank() == 0:
        say(write_checkpoint_line(CheckpointSaved(manifest.iteration, str(destination.folder.path))))
    return SaveTimes(_milliseconds_since(started))


def begin_save(
    engine: PipelineEngine,
    destination: Destination,
    manifest: Manifest,
    client_state: Mapping[str, Any],
    copies: HostCopies,
    with_optimizer: bool = True,
) -> SaveUnderWay:
    """Begin what `save_checkpoint` does: the training may go on, and publish it once it is written. Collective.

    Whoever published or gave up what was begun before with the same `copies` may begin another. Raises Refusal and
    Overtaken as well.
    """
    started = time.monotonic()
    name = _make_room(destination, manifest)
    taken = snapshot(engine, client_state, with_optimizer, copies)
    write_beside = BackgroundWrite(lambda: write(taken, destination.folder.place() / name))
    stall_ms = _milliseconds_since(started)
    return SaveUnderWay(destination, name, manifest, write_beside, stall_ms, engine.device)


def _make_room(destination: Destination, manifest: Manifest) -> str:
    if dist.get_rank() == 0:
        say(write_checkpoint_line(CheckpointSaving(manifest.iteration, str(destination.folder.path))))
    return make_room(destination, manifest.iteration)


def _milliseconds_since(started: float) -> float:
    return (time.monotonic() - started) * 1000
