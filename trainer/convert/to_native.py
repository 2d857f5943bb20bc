"""To a checkpoint as this trainer saves it, cut for the layout that is asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainer.convert.native import NativeFiles
from trainer.convert.output import being_written
from trainer.convert.workers import adding_up, each
from trainer.core.files import make_folder, write_atomically
from trainer.data.progress import Progress
from trainer.formats.checkpoint.manifest import LATEST, MANIFEST, Manifest, tag_of
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text


def write_native(files: NativeFiles, root: Path, manifest: Manifest, workers: int) -> Manifest:
    """Write the new folder `root` with the checkpoint and `latest`; returns the manifest with its files.

    Raises CheckpointError, one line; nothing is left then.
    """
    try:
        tasks, size_bytes = files.tasks(), files.size_bytes()
    except ValueError as error:
        raise CheckpointError(f"{error}: ask for another layout") from None
    sizes = [size for size, _ in tasks]
    with being_written(root, size_bytes) as folder:
        own = folder / tag_of(manifest.iteration)
        make_folder(own)
        with Progress("converting", sum(sizes)) as progress:
            written = each(
                [task for _, task in tasks], lambda task: task(own), workers, adding_up(sizes, progress.reached)
            )
        named = {name: file for one in written for name, file in one.items()}
        whole = msgspec.structs.replace(manifest, files=named)
        write_atomically(own / MANIFEST, json_file_text(whole.as_json()))
        write_atomically(folder / LATEST, own.name)
    return whole
