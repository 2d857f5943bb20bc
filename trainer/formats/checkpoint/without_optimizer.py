"""A checkpoint's manifest where its optimizer states are left out, by whoever sends the weights alone."""

from __future__ import annotations

import msgspec

from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.partitions import is_optimizer_file
from trainer.formats.checkpoint.resumable import NO_OPTIMIZER
from trainer.formats.json_text import json_file_text


def without_optimizer(manifest: Manifest) -> Manifest:
    """The manifest of what is left of a checkpoint without optimizer states, which says so as a save without does."""
    kept = {name: file for name, file in manifest.files.items() if not is_optimizer_file(name)}
    return msgspec.structs.replace(manifest, layout={**manifest.layout, "optimizer": NO_OPTIMIZER}, files=kept)


def manifest_text(manifest: Manifest) -> bytes:
    """A manifest as the file that it is."""
    return json_file_text(manifest.as_json()).encode()
