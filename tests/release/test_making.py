"""A release, made of a copy of this checkout with real git, hatchling and uv."""

from __future__ import annotations

import datetime
import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

from release import building
from release.commands import git, run
from release.making import release
from release.refusal import Refused
from tests.wheelhouse import asked_of, fill

ROOT = Path(__file__).resolve().parents[2]
TODAY = datetime.date(2026, 12, 1)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What lies in this checkout, as the one commit of a repository whose changelog waits for 9.9.9."""
    copy = tmp_path / "checkout"
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0"):
        source = ROOT / name
        if name.partition("/")[0] not in ("tests", "benchmarks") and source.is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy / name)
    changelog = copy / "CHANGELOG.md"
    first, heading, rest = changelog.read_text().partition("## ")
    changelog.write_text(f"{first}## [9.9.9] - unreleased\n\n### Added\n* Releases.\n\n{heading}{rest}")
    git(copy, "init", "-q", "-b", "main")
    for key, value in (("user.name", "somebody"), ("user.email", "somebody@example.org"), ("commit.gpgsign", "false")):
        git(copy, "config", key, value)
    git(copy, "add", "-A")
    git(copy, "commit", "-q", "-m", "All of it")
    return copy


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
    """Nobody looks on."""


def test_it_is_whole_or_nothing_and_its_notes_are_the_changelogs(checkout: Path, tmp_path: Path) -> None:
    before = state(checkout)

    def fails(python: Path, wheel: Path) -> None:
        raise Refused("the index does not answer")

    with pytest.raises(Refused, match="does not answer"):
        release(checkout, "9.9.9", TODAY, fails, quietly)
    assert state(checkout) == before and not (checkout / "dist").exists()

    made = release(checkout, "9.9.9", TODAY, offline, quietly)
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
    for line in made.files[0].read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((made.files[0].parent / name).read_bytes()).hexdigest() == digest

    with pytest.raises(Refused, match=r"v9.9.9 is there: 9.9.9 does not follow"):
        release(checkout, "9.9.9", TODAY, offline, quietly)


def test_a_checkout_with_something_uncommitted_or_no_branch_is_refused_before_anything(checkout: Path) -> None:
    (checkout / "notes.txt").write_text("mine")
    with pytest.raises(Refused, match=r"1 files in .* are not committed, notes.txt"):
        release(checkout, "9.9.9", TODAY, offline, quietly)
    (checkout / "notes.txt").unlink()
    git(checkout, "switch", "-q", "--detach")
    with pytest.raises(Refused, match="no branch is checked out"):
        release(checkout, "9.9.9", TODAY, offline, quietly)


def test_a_release_that_breaks_what_the_last_one_promised_of_json_is_refused(checkout: Path) -> None:
    path = checkout / "docs/schemas/1.json"
    path.write_text(path.read_text().replace('"submitted"', '"sent"'))
    git(checkout, "commit", "-q", "-a", "-m", "What was promised")
    git(checkout, "tag", "v9.9.8")
    with pytest.raises(Refused, match=r"--json breaks what v9.9.8 promised, .*sent"):
        release(checkout, "9.9.9", TODAY, offline, quietly)


def test_a_wheel_without_what_it_ships_is_found_out(checkout: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "opsctl.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in (one.relative_to(checkout) for one in checkout.glob("[tc]*/**/*") if one.is_file()):
            if path.parts[:2] != ("cron", "daily"):
                archive.writestr(f"opsctl/_shipped/{path}", "")
    with pytest.raises(Refused, match="the wheel lacks opsctl/_shipped/cron/daily/"):
        building.check(wheel, checkout, "0.1.0", tmp_path, offline)
