"""Test what pages and messages advise to install is this project, and its commands work as they are typed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: "opsctl" on the package index is another project: as a requirement, and after an installer's words.
_REQUIREMENT = re.compile(r"(?<![\w./-])opsctl(?:\[[a-z{]|\s*@\s*[a-z]+:|==)")
_INSTALLED = re.compile(r"(?:pip|pipx|uv tool|uv pip) install(?:\s+-\S+)*\s+['\"]?opsctl(?![\w-])")
_PLACES = ("opsctl", "trainer", "docs", "templates", "cron", "containers", "release", ".ci")
_ALONE = ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "mkdocs.yml")
_TEXT = {".py", ".md", ".toml", ".sh", ".def", ".j2", ".slurm", ".yml", ""}


def texts() -> list[Path]:
    """Every text that people read, or that installs; the lab's notes of the past are not among them."""
    below = [path for place in _PLACES for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix in _TEXT]
    return [path for path in below if path.name != "lab-notes.md"] + [ROOT / name for name in _ALONE]


def test_nothing_advises_to_install_the_other_project_of_that_name() -> None:
    found = []
    for path in texts():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if _REQUIREMENT.search(line) or _INSTALLED.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_every_extra_that_a_page_or_message_names_exists() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = re.compile(
        r"(?:opsctl-slurm|['\"]\.|\.whl)\[(?P<extras>[a-z0-9,-]+)\]|(?:requirement|install_command)\((?P<words>[^)]*)\)"
    )
    seen = {
        extra.strip(" \"'")
        for path in texts()
        for match in named.finditer(path.read_text())
        for extra in (match["extras"] or match["words"] or "").split(",")
    }
    assert {"trainer", "hub", "s3", "data"} <= seen
    assert {one for one in seen if re.fullmatch(r"[a-z0-9]+", one)} - {"extras"} <= extras


#: Started without what is installed: as a checkout on PYTHONPATH.
_WITHOUT_METADATA = (sys.executable, "-I", "-S", "-c")


def test_a_python_without_pip_is_told_to_install_an_extra_by_uv() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom trainer.formats.distribution import install_command\n"
    code += "print(install_command('hub'))"
    said = [
        shlex.split(subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True).stdout)
        for options in (("-I", "-S"), ())
    ]
    assert said[0][:5] == ["uv", "pip", "install", "--python", sys.executable]
    assert said[1][:4] == [sys.executable, "-m", "pip", "install"]
    assert all("[hub]" in words[-1] for words in said)


@pytest.mark.parametrize("program", ["version()", "requirement('hub')"])
def test_a_checkout_that_is_not_installed_knows_its_version_and_how_to_install_an_extra(program: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom trainer.formats.distribution import *\n"
    done = subprocess.run([*_WITHOUT_METADATA, f"{code}print({program})"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert done.stdout.strip() == {"version()": version, "requirement('hub')": f"-e '{ROOT}[hub]'"}[program]


def test_what_is_typed_for_an_extra_leaves_setuptools_usable_in_the_same_process() -> None:
    asked = "from trainer.formats.distribution import install_command; install_command('hub'); import setuptools"
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr
