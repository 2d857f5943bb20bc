"""The result of a check of every byte of a checkpoint, for people and programs and as a record next to its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import write_state
from opsctl.core.timestamps import now
from trainer.formats.checkpoint.verification import VERIFIED, Verification

#: The record has the first problems. More of them do not change the result.
_MOST_PROBLEMS = 100


class VerifiedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of which every file was read."""

    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    files: Annotated[int, Meta(description="Number of files that its manifest names.")]
    bytes: Annotated[int, Meta(description="Size of those together.")]
    problems: Annotated[list[str], Meta(description="What is wrong, a sentence for each file; empty when it is whole.")]
    damage: Annotated[
        list[str],
        Meta(description="The problems that prove damage: none of permissions or of a silent server."),
    ] = []
    manifest_xxh64: Annotated[
        str | None, Meta(description="Checksum of the manifest that the files were compared with; null: not readable.")
    ] = None


def record_verification(output: Path, found: VerifiedCheckpoint) -> None:
    """Write the result to the checkpoint's folder, in the run's folder `output`.

    Nothing is written where the result proves nothing: a manifest or a file could not be read. Raises OpsctlError where
    the record cannot be written.
    """
    if found.manifest_xxh64 is None or (found.problems and not found.damage):
        return
    path = Path(found.folder) / VERIFIED
    problems = tuple(found.damage[:_MOST_PROBLEMS])
    at = now().replace(microsecond=0)
    record = Verification(manifest_xxh64=found.manifest_xxh64, at=at, by=account_and_host(), problems=problems)
    try:
        write_state(output, path, record)
    except OSError as error:
        raise OpsctlError(f"the result is not on record: {file_problem(error, path)}") from None
