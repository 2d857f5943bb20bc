"""Record what a training is started with in its attempt's folder, next to the start: `python -P -m ... FOLDER`.

It is a separate process of the lowest priority. No rank waits for it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from trainer.core.files import write_atomically
from trainer.formats.attempt.environment import ENVIRONMENT_FILE, Environment
from trainer.formats.attempt.environment_facts import facts
from trainer.formats.json_text import json_file_text

_LOWEST = 19


def start_recording(attempt_folder: Path) -> None:
    """Start writing `environment.json` to `attempt_folder`. A failed start is no error of the training.

    Its output is discarded: a reader of the launcher's output must not wait for it.
    """
    command = [sys.executable, "-P", "-m", "trainer.launcher.environment_record", str(attempt_folder)]
    nowhere = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)


def main(arguments: list[str] | None = None) -> int:
    """Write it; 0, or 1 where the disk does not take it."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    with contextlib.suppress(OSError):
        os.nice(_LOWEST)
    found = msgspec.convert(facts(), Environment)
    try:
        write_atomically(Path(folder) / ENVIRONMENT_FILE, json_file_text(found))
    except OSError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
