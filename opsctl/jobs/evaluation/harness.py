"""lm-eval in the Python that has it: which tasks it knows, and running them on a folder of transformers'."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.core.process import Overdue, find_program, run_on_terminal, run_program
from opsctl.jobs.evaluation.results import Mark
from opsctl.jobs.evaluation.settings import Settings
from trainer.formats import json_text
from trainer.formats.json_text import json_line
from trainer.formats.tolerant import decode

#: For Python to read some ten thousand descriptions of tasks on a slow file system.
ASKED_S = 600.0
_MARK = b"opsctl-tasks:"
_PROGRAM = "tasks/harness.py"


class Answer(msgspec.Struct, frozen=True):
    """The answer of an lm-eval about the wanted tasks."""

    version: str
    known: tuple[str, ...]


@dataclass(frozen=True)
class Harness:
    """The Python of a run's `[evaluation]`."""

    settings: Settings

    def ask(self, tasks: Sequence[str]) -> Answer:
        """Ask which of the tasks it has. Raises OpsctlError if no lm-eval answers."""
        table = self.settings.table
        folder = next((one for one in table.include if not Path(one).is_dir()), None)
        if folder is not None:
            raise OpsctlError(f"[evaluation] include names {folder}, which is no folder")
        request = {"tasks": list(tasks), "include": table.include}
        python = self._found()
        try:
            ended = run_program([python, _program(), "-"], self._environment(), ASKED_S, json_line(request).encode())
        except Overdue:
            raise OpsctlError(f"lm-eval in {python} did not answer within {ASKED_S:.0f} s") from None
        except OSError as error:
            raise OpsctlError(f"{python} cannot be run: {error.strerror}") from None
        answer = decode(ended.out.rpartition(_MARK)[2], Answer) if ended.code == 0 else None
        if answer is None:
            lines = ended.err.decode(errors="replace").strip().splitlines()
            said = lines[-1].removeprefix("opsctl: ") if lines else f"exit code {ended.code}"
            raise OpsctlError(
                f"lm-eval does not start: {said}; name a Python that has it in [evaluation] python (docs/evaluation.md)"
            )
        return answer

    def request(self, model: Path, output: Path, tasks: Sequence[str], mark: Mark) -> dict[str, Any]:
        """Return the input of its program for a model's folder."""
        table = self.settings.table
        return {
            "model": str(model),
            "output": str(output),
            "of": mark.of,
            "under": mark.under,
            "tasks": list(tasks),
            "include": list(table.include),
            "few_shot": table.few_shot,
            "limit": table.limit,
            "batch_size": table.batch_size,
            "device": table.device,
            "model_args": list(table.model_args),
        }

    def run(self, request: Path, meanwhile: Callable[[], None]) -> int:
        """Run the tasks of a request, as long as that takes; its exit code. Raises OSError."""
        return run_on_terminal(
            [self._found(), _program(), str(request)], self._environment(), to_stderr=True, meanwhile=meanwhile
        )

    def _found(self) -> str:
        python = find_program(self.settings.python, os.environ)
        if python is None:
            raise OpsctlError(f"[evaluation] python = {self.settings.python}: there is no such program")
        return python

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.settings.variables}


def _program() -> str:
    """Return the file of the program: that Python need not have our packages."""
    return str(Path(json_text.__file__).parents[1] / _PROGRAM)
