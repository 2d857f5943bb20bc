"""`pytest -p tests.measure`: says at the end which of our modules the tests ran little of. Nothing fails by it.

Counted are the tests' own processes and every `opsctl`, and every preparing of data, that they start, under any account
in whatever environment, inside Slurm's jobs too: for as long as the tests run, a line in this virtual environment's
site-packages starts the counting there, so that nothing of it is in any user's environment. Ranks are not counted:
they end by `os._exit`, and counting would slow every step.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import counting

WORTH_A_LINE_BELOW = 60.0
#: What a .pth file may hold: one line that begins with import.
_AT_START = (
    "import os, sys; os.path.isdir({folder!r}) "
    "and any(word.rpartition('/')[2] == 'opsctl' or word.startswith('trainer.data.') for word in sys.orig_argv) "
    "and __import__('runpy').run_path({code!r})['start']({folder!r})\n"
)
_FOLDER = pytest.StashKey[Path]()
_FINISH = pytest.StashKey[Callable[[], None]]()


def _hook() -> Path:
    return Path(sysconfig.get_path("purelib")) / "opsctl_tests_measure.pth"


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Start counting here; the first process also makes the folder and has the commands counted."""
    if _is_worker(config):
        folder = Path(getattr(config, "workerinput")["measured_into"])  # noqa: B009 - xdist gives it to workers alone
    else:
        folder = Path(tempfile.mkdtemp(prefix="opsctl-lines-"))
        folder.chmod(0o1777)
        _hook().write_text(_AT_START.format(code=counting.__file__, folder=str(folder)))
    config.stash[_FOLDER] = folder
    config.stash[_FINISH] = counting.start(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where its data goes."""
    node.workerinput["measured_into"] = str(node.config.stash[_FOLDER])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down what this process ran; a worker's end may come without its exit handlers."""
    session.config.stash[_FINISH]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The share of all lines that ran, and the modules with less than `WORTH_A_LINE_BELOW` percent of theirs."""
    if _is_worker(config):
        return
    shares, total = _shares(config.stash[_FOLDER])
    terminalreporter.section(f"{total:.1f} % of the lines ran; below {WORTH_A_LINE_BELOW:g} %:")
    for module, share in sorted(shares.items(), key=lambda entry: entry[1]):
        if share < WORTH_A_LINE_BELOW:
            terminalreporter.line(f"{share:5.1f} %  {module}")


def _shares(folder: Path) -> tuple[dict[str, float], float]:
    """(module -> percent of its lines that ran, percent of all lines)."""
    counted = counting.counter(folder)
    counted.combine([str(folder)])
    report = folder / "report.json"
    total = counted.json_report(outfile=str(report))
    files = json.loads(report.read_text())["files"]
    root = counting.ROOT
    return {
        str((root / name).resolve().relative_to(root)): entry["summary"]["percent_covered"]
        for name, entry in files.items()
    }, total


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if not _is_worker(config):
        _hook().unlink(missing_ok=True)
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)
