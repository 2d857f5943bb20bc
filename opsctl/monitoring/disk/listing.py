"""A file with all that is about to be purged, written as it is found; and the record of what was touched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import append_state, make_folder
from opsctl.core.output import printable
from opsctl.core.timestamps import iso, now
from opsctl.monitoring.disk.purging import Going
from opsctl.monitoring.disk.touching import Touched
from opsctl.run.config.locate import account_state_folder
from trainer.formats.json_text import Moment


class TouchLine(msgspec.Struct, frozen=True, kw_only=True):
    """One time that files of a folder were touched."""

    at: Moment
    by: str
    folder: str
    files: int
    size_bytes: int
    by_reading: bool


@contextlib.contextmanager
def list_into(path: Path) -> Iterator[Callable[[Going, Path], None]]:
    """What writes a line into `path`: when a file goes, its size, its path. Raises OpsctlError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("x", encoding="utf-8", errors="surrogateescape") as file:

            def write(one: Going, folder: Path) -> None:
                goes_at = iso(datetime.fromtimestamp(one.goes_at_s, UTC))
                file.write(f"{goes_at} {one.size_bytes:15} {printable(str(folder / one.place))}\n")

            yield write
        beside.replace(path)
    except OSError as error:
        raise OpsctlError(f"cannot write the list: {file_problem(error, path)}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def remember_touch(folder: Path, done: Touched, by_reading: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Put it on record for this account. Raises OSError where that cannot be."""
    root = account_state_folder(environment)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = root / "disk" / "touched.jsonl"
    make_folder(root, record.parent)
    line = TouchLine(
        at=now(),
        by=account_name(),
        folder=str(folder),
        files=done.files,
        size_bytes=done.size_bytes,
        by_reading=by_reading,
    )
    append_state(root, record, line)
