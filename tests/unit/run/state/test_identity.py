"""A run is its id and its folder together: what a copy, a move, and another name of the folder are."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.core.files.state_files import write_state
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import chains
from opsctl.run.state.chains import recorded
from opsctl.run.state.identity import (
    OF_THE_ORIGINAL,
    Identity,
    Place,
    Standing,
    There,
    before_the_move,
    is_here,
    judged,
    make_run_id,
    place_of,
    read_run_id,
    refuse_a_copy,
    settle_identity,
    settled_identity,
)
from tests.facts import missing
from tests.unit.run.state.test_chains import CHAIN, OURS

ID = Identity(id="5eed", folder="/a", inode=7)


@pytest.mark.parametrize(
    ("inode", "there", "standing"),
    [
        (7, There(exists=False), Standing.MOVED),
        (8, There(exists=False), Standing.MOVED),  # to another disk
        (7, There(exists=False, is_seen=False), Standing.MOVED),  # with the folder around it
        (8, There(exists=False, is_seen=False), Standing.UNCLEAR),
        (8, There(exists=True, is_seen=False), Standing.UNCLEAR),
        (8, There(exists=True, id="5eed"), Standing.COPY),
        (7, There(exists=True, id="5eed"), Standing.UNCLEAR),  # moved, and copied back
        (8, There(exists=True, id="0ther"), Standing.MOVED),
        (8, There(exists=True), Standing.MOVED),
        (8, There(exists=True, is_here=True), Standing.SAME),  # by another mount's name
    ],
)
def test_what_a_folder_is_follows_from_what_is_where_its_id_was_made(
    inode: int, there: There, standing: Standing
) -> None:
    assert judged(ID, Path("/b"), inode, there) == Place(standing, Path("/a"))


def test_at_its_own_place_it_is_the_run_whatever_disk_it_was_restored_to() -> None:
    assert judged(ID, Path("/a"), 8, There(exists=True)).standing is Standing.SAME


def test_a_run_of_an_earlier_release_is_bound_to_nothing() -> None:
    assert judged(None, Path("/a"), 8, There(exists=False)) == Place(Standing.UNBOUND)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run that was submitted and has all that one has."""
    paths = RunPaths(tmp_path / "original")
    paths.state.mkdir(parents=True)
    chains.append_chain(paths, CHAIN)
    make_run_id(paths)
    for name in OF_THE_ORIGINAL:
        if not (paths.state / name).exists():
            (paths.state / name).write_text("{}")
    (paths.state / "lock").touch()
    return paths


def copied(run: RunPaths, name: str = "copy") -> RunPaths:
    return RunPaths(Path(shutil.copytree(run.output, run.output.with_name(name), symlinks=True)))


def test_a_copy_has_none_of_the_originals_jobs(run: RunPaths) -> None:
    ours = msgspec.structs.replace(OURS, comment=f"opsctl run={read_run_id(run)} submit=70ce")
    copy = copied(run)
    assert recorded(run).own([ours]) == [ours]
    assert recorded(copy).own([ours]) == []
    assert place_of(copy) == Place(Standing.COPY, run.output)
    with pytest.raises(OpsctlError, match=rf"cancel x: .*copy of {run.output}"):
        refuse_a_copy(copy, "cancel x")


def test_a_copy_becomes_a_new_run_and_keeps_the_records_of_the_original_in_a_folder(run: RunPaths) -> None:
    run_id, copy = read_run_id(run), copied(run)
    said = settle_identity(copy)
    assert missing(said, copy.output, "copy", run.output) == [] and "\n" not in said
    aside = copy.state / f"copied-from-{run_id}"
    assert {path.name for path in aside.iterdir()} == set(OF_THE_ORIGINAL)
    assert {path.name for path in copy.state.iterdir()} == {aside.name, "lock"}
    assert make_run_id(copy) != run_id
    assert settle_identity(copy) == "" and settle_identity(run) == ""
    assert read_run_id(run) == run_id and chains.read_chains(run) == [CHAIN]


@pytest.mark.parametrize("left", range(len(OF_THE_ORIGINAL)))
def test_a_copy_whose_settling_was_killed_is_still_a_copy(
    run: RunPaths, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, done = copied(run), 0

    def rename(*names: str, **folders: int) -> None:
        nonlocal done
        if done == left:
            raise KeyboardInterrupt
        done += 1
        real(*names, **folders)

    real = __import__("os").rename
    monkeypatch.setattr("opsctl.run.state.identity.os.rename", rename)
    with pytest.raises(KeyboardInterrupt):
        settle_identity(copy)
    monkeypatch.undo()
    assert place_of(copy).standing is Standing.COPY
    assert settle_identity(copy)
    assert {path.name for path in next(copy.state.glob("copied-*")).iterdir()} == set(OF_THE_ORIGINAL)


def test_a_copy_of_a_copy_keeps_the_records_of_both(run: RunPaths) -> None:
    first = copied(run)
    settle_identity(first)
    make_run_id(first)
    second = copied(first, "second")
    assert settle_identity(second)
    assert len(list(second.state.glob("copied-from-*"))) == 2


def test_a_moved_folder_is_still_the_same_run(run: RunPaths) -> None:
    run_id = read_run_id(run)
    moved = RunPaths(run.output.rename(run.output.with_name("moved")))
    assert place_of(moved) == Place(Standing.MOVED, run.output)
    assert recorded(moved).run_id == run_id
    said = settle_identity(moved)
    assert missing(said, moved.output, run.output) == [] and "copy" not in said
    assert place_of(moved).standing is Standing.SAME and settle_identity(moved) == ""


def test_a_folder_with_all_around_it_moved_is_the_same_run(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "project" / "run" / "output")
    paths.state.mkdir(parents=True)
    make_run_id(paths)
    (tmp_path / "project").rename(tmp_path / "renamed")
    assert place_of(RunPaths(tmp_path / "renamed" / "run" / "output")).standing is Standing.MOVED


def test_the_same_folder_by_another_name_is_no_move(run: RunPaths) -> None:
    link = run.output.with_name("link")
    link.symlink_to(run.output)
    by_link = RunPaths(link)
    assert place_of(by_link).standing is Standing.SAME
    settle_identity(by_link)
    assert place_of(run).standing is Standing.SAME
    assert is_here(str(link), run) and is_here("", run) and not is_here("/gone", run)


def test_an_unclear_folder_is_refused_with_the_two_remedies(run: RunPaths) -> None:
    copy = copied(run)
    identity = Identity(id="5eed", folder="/no/such/disk/output", inode=1)
    write_state(copy.output, copy.identity, identity)
    with pytest.raises(OpsctlError, match=rf"remove {copy.identity}.* remove {copy.state}"):
        settle_identity(copy)
    copy.identity.unlink()
    assert settle_identity(copy) == ""
    assert place_of(copy).standing is Standing.SAME


def test_a_lost_id_is_found_in_the_identity_and_written_anew(run: RunPaths) -> None:
    run_id = read_run_id(run)
    run.run_id.unlink()
    assert recorded(run).run_id == run_id
    settle_identity(run)
    assert run.run_id.read_text().strip() == run_id


def test_a_lost_id_is_found_by_the_tokens_of_its_chains(run: RunPaths) -> None:
    run.run_id.unlink()
    run.identity.unlink()
    renamed = msgspec.structs.replace(OURS, array_job_id=77, comment="opsctl run=5eed submit=0ther")
    stranger = msgspec.structs.replace(OURS, array_job_id=78, comment="opsctl run=0ther submit=0ther")
    assert recorded(run).own([OURS, renamed, stranger]) == [OURS, renamed]


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"id": "x"}', '{"id": "x", "folder": "rel", "inode": 1}'])
def test_a_damaged_identity_is_none(run: RunPaths, text: str) -> None:
    run_id = read_run_id(run)
    run.identity.write_text(text)
    assert place_of(run).standing is Standing.UNBOUND
    assert settle_identity(run) == ""
    assert read_run_id(run) == run_id and place_of(run).standing is Standing.SAME


def test_an_error_after_settling_also_reports_the_copy(run: RunPaths) -> None:
    copy = copied(run)
    with pytest.raises(UsageError, match=rf"no such thing .*copy of {run.output}"), settled_identity(copy):
        raise UsageError("no such thing")
    with settled_identity(run) as news:
        assert news == ()


def test_tasks_of_a_moved_run_look_where_it_was_also_after_it_was_settled(run: RunPaths) -> None:
    moved = RunPaths(run.output.rename(run.output.with_name("moved")))
    assert before_the_move(moved) == str(run.output)
    assert settle_identity(moved) and settle_identity(moved) == ""
    assert before_the_move(moved) == str(run.output)
