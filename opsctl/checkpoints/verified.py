"""What a reading of every byte found, for people and programs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class VerifiedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of which every file was read."""

    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    files: Annotated[int, Meta(description="Number of files that its manifest names.")]
    bytes: Annotated[int, Meta(description="Size of those together.")]
    problems: Annotated[list[str], Meta(description="What is wrong, a sentence for each file; empty when it is whole.")]
