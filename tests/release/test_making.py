"""A release, made of a copy of this checkout with real git, hatchling and uv."""

from __future__ import annotations

import datetime
import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

from release import building, making
from release.commands import git, run
from release.making import Released, release
from release.refusal import Refused
from tests.wheelhouse import asked_of, fill

ROOT = Path(__file__).resolve().parents[2]
TODAY = datetime.date(2026, 12, 1)


#: As little of a project as a release can be made of; the wheel takes what `tool.hatch` names, as ours does.
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "opsctl-slurm"
version = "0.1.0"
requires-python = ">=3.11"
[tool.hatch.build.targets.wheel]
packages = ["opsctl"]
"""


def committed(checkout: Path) -> Path:
    """Make a repository of a folder, with one commit of all its files and a changelog that waits for 9.9.9."""
    changelog = checkout / "CHANGELOG.md"
    first, heading, rest = changelog.read_text().partition("## ")
    changelog.write_text(f"{first}## [9.9.9] - unreleased\n\n### Added\n* Releases.\n\n{heading}{rest}")
    git(checkout, "init", "-q", "-b", "main")
    for key, value in (("user.name", "ann"), ("user.email", "ann@example.org"), ("commit.gpgsign", "false")):
        git(checkout, "config", key, value)
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "All of it")
    return checkout


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project of one module and one shipped file."""
    texts = {
        "pyproject.toml": PROJECT,
        "CHANGELOG.md": "# Changelog\n\n## [0.1.0] - 2026-01-01\n* The first.\n",
        ".gitignore": "dist\n",
        "opsctl/__init__.py": "",
        "cron/daily/backup.slurm": "",
        "release/json_fields.txt": (ROOT / "release/json_fields.txt").read_text(),
    }
    for name, text in texts.items():
        (tmp_path / "small" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "small" / name).write_text(text)
    return committed(tmp_path / "small")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """All files of this checkout but the tests."""
    copy = tmp_path / "whole"
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        source = ROOT / name
        if name.partition("/")[0] not in ("tests", "benchmarks") and source.is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy / name)
    return committed(copy)


def state(checkout: Path) -> list[str]:
    """All that a release may change of a repository."""
    asked = (("rev-parse", "HEAD"), ("status", "--porcelain"), ("tag",), ("worktree", "list"))
    return [git(checkout, *words) for words in asked]


def offline(python: Path, wheel: Path) -> None:
    """As `building.from_index`, with wheels of what is installed here in the index's place."""
    house = wheel.parent.parent / "house"
    fill(house, asked_of(wheel))
    words = ["pip", "install", "-q", "--offline", "--no-index", "--no-cache", "--find-links", str(house)]
    run([find_uv_bin(), *words, "--python", python, wheel], wheel.parent)


def quietly(line: str) -> None:
    """Print nothing."""


def check_released(checkout: Path, before: list[str], made: Released) -> None:
    """Check the tag, the commit, the notes and the files of release 9.9.9."""
    assert (made.tag, made.branch) == ("v9.9.9", "main")
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "rev-parse", "v9.9.9^{commit}") == git(checkout, "rev-parse", "main")
    assert git(checkout, "rev-list", "--count", f"{before[0]}..main") == "1"
    assert "## [9.9.9] - 2026-12-01" in (checkout / "CHANGELOG.md").read_text()
    assert git(checkout, "tag", "-l", "--format=%(contents)", "v9.9.9") == "### Added\n* Releases."
    assert [path.name for path in made.files] == [
        "SHA256SUMS",
        "notes.md",
        "opsctl_slurm-9.9.9-py3-none-any.whl",
        "opsctl_slurm-9.9.9.tar.gz",
    ]
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.files[2:]}
    assert {name: digest for digest, name in map(str.split, made.files[0].read_text().splitlines())} == sums


def test_a_release_is_whole_or_nothing(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(small)

    def fails(*_: object) -> None:
        raise Refused("NO WHEEL")

    monkeypatch.setattr(making, "check", fails)
    with pytest.raises(Refused, match="NO WHEEL"):
        release(small, "9.9.9", TODAY, offline, quietly)
    assert state(small) == before and not (small / "dist").exists()

    monkeypatch.setattr(making, "check", lambda *_: None)
    check_released(small, before, release(small, "9.9.9", TODAY, offline, quietly))
    with pytest.raises(Refused, match=r"v9\.9\.9"):
        release(small, "9.9.9", TODAY, offline, quietly)


@pytest.mark.nightly
def test_this_checkout_can_be_released(whole: Path) -> None:
    before = state(whole)
    check_released(whole, before, release(whole, "9.9.9", TODAY, offline, quietly))


def test_a_checkout_with_uncommitted_files_or_without_a_branch_is_refused_first(small: Path) -> None:
    (small / "notes.txt").write_text("mine")
    with pytest.raises(Refused, match=r"^1 .*notes\.txt"):
        release(small, "9.9.9", TODAY, offline, quietly)
    (small / "notes.txt").unlink()
    git(small, "switch", "-q", "--detach")
    with pytest.raises(Refused, match="git switch main"):
        release(small, "9.9.9", TODAY, offline, quietly)


def test_a_release_that_breaks_the_json_of_the_last_one_is_refused(small: Path) -> None:
    path = small / "release/json_fields.txt"
    path.write_text(path.read_text().replace("submit: submitted: ", "submit: sent: "))
    git(small, "commit", "-q", "-a", "-m", "Another schema")
    git(small, "tag", "v9.9.8")
    with pytest.raises(Refused, match=r"v9\.9\.8.*sent.*SCHEMA_VERSION"):
        release(small, "9.9.9", TODAY, offline, quietly)


def test_a_wheel_that_lacks_a_shipped_file_is_refused(small: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "opsctl.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("opsctl/__init__.py", "")
    with pytest.raises(Refused, match="opsctl/_shipped/cron/daily/backup"):
        building.check(wheel, small, "0.1.0", tmp_path, offline)
