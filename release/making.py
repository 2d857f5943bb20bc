"""One release, from a clean checkout to a tag. It pushes and uploads nothing."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from release.building import Install, build, check, sums
from release.changelog import dated, notes
from release.commands import git
from release.refusal import Refused
from release.versions import check_follows, last_tag, tag_of, with_version


@dataclass(frozen=True)
class Released:
    """The result of a release."""

    tag: str
    branch: str
    files: tuple[Path, ...]  # source distribution, wheel, checksums, notes


def release(root: Path, version: str, today: datetime.date, install: Install, say: Callable[[str], None]) -> Released:
    """Commit, build, check and tag `version` of the checkout `root`, whose branch goes on to that commit.

    All of it happens in a worktree beside; the checkout is changed when everything has come out, in its last two
    steps. Raises Refused otherwise, with nothing changed.
    """
    tags = git(root, "tag", "--list").splitlines()
    check_follows(version, tags)
    branch = _clean_branch(root)
    _check_promise(root, last_tag(tags))
    with _beside(root) as place:
        tree, built = place / "tree", place / "built"
        built.mkdir()
        _edit(tree, version, today)
        git(tree, "commit", "-q", "-a", "-m", f"Release {version}")
        commit = git(tree, "rev-parse", "HEAD")
        say(f"building opsctl {version} of {commit[:12]}")
        sdist, wheel = build(tree, built, git(tree, "show", "-s", "--format=%ct", "HEAD"))
        say("trying the wheel in an environment of its own")
        check(wheel, tree, version, place, install)
        said = notes((tree / "CHANGELOG.md").read_text(), version) + "\n"
        (built / "notes.md").write_text(said)
        (built / "SHA256SUMS").write_text(sums([sdist, wheel]))
        files = _hand_over(built, root / "dist" / version)
        git(root, "merge", "-q", "--ff-only", commit)
        git(root, "tag", "-a", tag_of(version), "-F", built / "notes.md", "--cleanup=verbatim", commit)
    return Released(tag_of(version), branch, files)


def _clean_branch(root: Path) -> str:
    """The branch that is checked out. Raises Refused where there is none, or something is not committed."""
    if changed := git(root, "status", "--porcelain").splitlines():
        raise Refused(f"{len(changed)} files in {root} are not committed, {changed[0][3:]} among them: commit or stash")
    branch = git(root, "branch", "--show-current")
    if not branch:
        raise Refused(f"no branch is checked out in {root}: git switch main")
    return branch


def _check_promise(root: Path, before: str | None) -> None:
    """Raises Refused where `--json` breaks what the release `before` promised under the same schema version."""
    from opsctl.cli.json_schema import all_printed
    from release.json_fields import RECORD, broken, lines_of

    path = RECORD.relative_to(Path(__file__).parents[1])
    if before is None or not git(root, "ls-tree", "--name-only", before, path):
        return
    if lost := broken(git(root, "show", f"{before}:{path}").splitlines(), lines_of(all_printed())):
        raise Refused(f"--json breaks what {before} promised, {lost[0]}: keep it, or raise SCHEMA_VERSION")


@contextlib.contextmanager
def _beside(root: Path) -> Iterator[Path]:
    """A folder with the commit that is checked out in its `tree`; all of it is removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="opsctl-release-"))
    try:
        git(root, "worktree", "add", "-q", "--detach", place / "tree", "HEAD")
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        git(root, "worktree", "prune")


def _edit(tree: Path, version: str, today: datetime.date) -> None:
    changelog, project = tree / "CHANGELOG.md", tree / "pyproject.toml"
    changelog.write_text(dated(changelog.read_text(), version, today))
    project.write_text(with_version(project.read_text(), version))


def _hand_over(built: Path, to: Path) -> tuple[Path, ...]:
    """Copies in a folder that what an earlier try left does not mix with."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(built, to)
    return tuple(sorted(to.iterdir()))
