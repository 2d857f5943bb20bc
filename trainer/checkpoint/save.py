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
from trainer.checkpoint.publish import make_room, publish
from trainer.checkpoint.snapshot import snapshot
from trainer.checkpoint.write import write
from trainer.formats.log_lines import CheckpointSaved, CheckpointSaving, write_checkpoint_line
from trainer.formats.manifest import Manifest
from trainer.say import say


def save_checkpoint(
    engine: PipelineEngine,
    destination: Destination,
    manifest: Manifest,
    client_state: Mapping[str, Any],
    with_optimizer: bool = True,
) -> float:
    """Save as `global_stepN` and make it the latest. Collective; returns the milliseconds it took.

    `manifest` comes with no files; `client_state` goes into DeepSpeed's own files and must be plain data. Raises
    Refusal on every rank when one of them could not write, Overtaken when another writer has this training: nothing is
    left of the save then.
    """
    started = time.monotonic()
    first, root = dist.get_rank() == 0, str(destination.folder.path)
    if first:
        say(write_checkpoint_line(CheckpointSaving(manifest.iteration, root)))
    name = make_room(destination, manifest.iteration)
    taken = snapshot(engine, client_state, with_optimizer)
    publish(destination, name, manifest, lambda: write(taken, destination.folder.place() / name))
    if first:
        say(write_checkpoint_line(CheckpointSaved(manifest.iteration, root)))
    return (time.monotonic() - started) * 1000
