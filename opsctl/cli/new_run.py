"""The folder of a new run, and what to type next: whether an example, answers or a script say what is in it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path


def make_run(
    folder: Path,
    run_name: str,
    text: str,
    beside: Mapping[str, str] | None = None,
    check: Callable[[Path], object] | None = None,
) -> None:
    """Make the folder with the run file and the files `beside` it, name -> text, if `check` accepts it.

    Raises OpsctlError if the folder exists.
    """
    from opsctl.core.errors import OpsctlError
    from opsctl.core.files.state_files import fsync_named_folder, write_atomically
    from opsctl.run.config.locate import RUN_FILE_NAME, remember_run

    if os.path.lexists(folder):
        raise OpsctlError(f"{folder} already exists: choose another name, or edit {folder / RUN_FILE_NAME}")
    # Made beside and renamed, so that no half-made run is ever found under the name.
    half = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        half.mkdir(parents=True)
        for file_name, contents in {RUN_FILE_NAME: text, **(beside or {})}.items():
            write_atomically(half, half / file_name, contents)
        if check is not None:
            check(half / RUN_FILE_NAME)
        half.rename(folder)
        fsync_named_folder(folder.parent)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    remember_run(run_name, folder / RUN_FILE_NAME)


def say_next(folder: Path, steps: Iterable[tuple[str, str]]) -> None:
    """Print the run file's path on stdout, and the next commands with their purpose on stderr."""
    from opsctl.core.output import message, show
    from opsctl.run.config.locate import RUN_FILE_NAME

    show(str(folder / RUN_FILE_NAME))
    message("next:")
    for why, step in (("", f"cd {shlex.quote(os.path.relpath(folder))}"), *steps):
        if why:
            message(f"  # {why}")
        message(f"  {step}")
