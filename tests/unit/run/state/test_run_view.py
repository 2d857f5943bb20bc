"""The run of those who look, while its run file is whole, broken, or beyond reading."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config.load import load_run_file
from opsctl.run.state.revisions import publish
from opsctl.run.state.run_view import glance, view
from tests.tiny_run import ready, write_run


def break_after_publishing(folder: Path, publish_it: bool = True) -> Path:
    path = write_run(folder)
    (folder / "output" / ".opsctl").mkdir(parents=True)
    if publish_it:
        publish(ready(load_run_file(path)))
    path.write_text(path.read_text().replace('name = "tiny"', 'name = "edited"\ngroup = "team"\nno_such_key = 1'))
    return path


def test_a_broken_run_file_still_says_where_and_whose_the_run_is(tmp_path: Path) -> None:
    path = break_after_publishing(tmp_path, publish_it=False)
    seen = glance(str(path))
    assert (seen.paths.output, seen.table.name, seen.table.group) == (tmp_path / "output", "edited", "team")
    assert seen.loaded is None and "no_such_key" in seen.problem


def test_what_a_broken_run_file_was_is_taken_from_what_is_published(tmp_path: Path) -> None:
    seen = view(str(break_after_publishing(tmp_path)))
    assert (seen.table.name, seen.loaded) == ("tiny", None) and "no_such_key" in seen.problem


def test_a_broken_run_file_of_which_nothing_is_published_is_an_error(tmp_path: Path) -> None:
    path = break_after_publishing(tmp_path, publish_it=False)
    with pytest.raises(RunFileError, match="no_such_key"):
        view(str(path))


@pytest.mark.parametrize("text", ["", "[run", "run = 1", '[run]\nname = "x"\noutput = "${NO_SUCH_VARIABLE}"', "\udcff"])
def test_a_run_file_that_does_not_even_say_where_the_run_is_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RunFileError):
        glance(str(path))


def test_a_damaged_revision_keeps_nobody_from_finding_the_run(tmp_path: Path) -> None:
    path = break_after_publishing(tmp_path)
    for about in (tmp_path / "output" / ".opsctl" / "revisions").glob("*/revision.json"):
        about.write_text("null")
    assert glance(str(path)).paths.output == tmp_path / "output"


def test_a_run_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    with path.open("r+") as file:
        file.truncate(1 << 40)
    with pytest.raises(RunFileError, match=str(path)):
        glance(str(path))


def test_modules_of_quick_commands_import_no_slow_ones() -> None:
    lines = ["import sys"]
    for modules, never in {
        "opsctl.monitoring.registry": ["opsctl.run.state.revisions", "opsctl.run.config.load"],
        "opsctl.run.state.run_view, opsctl.run.state.identity": ["opsctl.run.state.revisions", "opsctl.run.render"],
        "opsctl.run.state.revisions": ["opsctl.run.render"],
    }.items():
        lines += [f"import {modules}", f"print({modules!r}, sorted(set({never!r}) & sys.modules.keys()))"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("[]") == 3, done.stdout + done.stderr
