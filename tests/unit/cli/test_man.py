"""Manual pages, as man shows them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from opsctl.cli import COMMANDS, root
from opsctl.cli.man import pages
from tests.unit.cli.called import opsctl


def test_there_is_a_page_of_every_command(tmp_path: Path) -> None:
    assert opsctl("man", "--output", str(tmp_path)) == 0
    written = {one.name for one in (tmp_path / "man1").iterdir()}
    assert {"opsctl.1", "opsctl-kill-switch-trigger.1", *(f"opsctl-{name}.1" for name in COMMANDS)} <= written


def test_man_shows_what_help_says_word_for_word(tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff here: apt-get install groff-base")
    shown = _shown(pages()["opsctl-plan.1"])
    plan = root.get_command(click.Context(root), "plan")
    assert plan is not None
    assert f"opsctl-plan - {plan.get_short_help_str(300).rstrip('.')}" in " ".join(shown.split())
    (option,) = [one for one in plan.params if one.name == "params"]
    assert "--params NUMBER" in shown and isinstance(option, click.Option) and str(option.help) in shown
    assert "  opsctl plan RUN --search --gpus 192\n" in shown


def test_no_page_has_anything_that_groff_warns_of() -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff here: apt-get install groff-base")
    together = "".join(pages().values())
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=together.encode(), capture_output=True, timeout=60)
    assert done.returncode == 0
    assert [line for line in done.stderr.decode().splitlines() if "can't break line" not in line][:5] == []


def _shown(page: str) -> str:
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-c", "-rLL=120n"], input=page.encode(), capture_output=True, timeout=60
    )
    return subprocess.run(["col", "-bx"], input=done.stdout, capture_output=True, timeout=20).stdout.decode()
