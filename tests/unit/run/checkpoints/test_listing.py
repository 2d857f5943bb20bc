"""The rows of `opsctl checkpoints list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What, digest_here, shown_place
from opsctl.run.checkpoints.listing import ListedCheckpoint, checkpoint_table, listed
from tests.tiny_run import write_checkpoint


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Return a folder of three checkpoints, the last of them damaged, the second the latest."""
    for iteration in (10, 9, 100):
        write_checkpoint(tmp_path, iteration, 8 * iteration)
    folder = tmp_path / "output" / "checkpoints"
    (folder / "latest").write_text("global_step10")
    (folder / "global_step100" / "manifest.json").unlink()
    (folder / ".tmp-global_step110").mkdir()
    return folder


def test_every_checkpoint_is_listed_oldest_first_with_what_is_wrong(checkpoints: Path) -> None:
    found = listed(checkpoints)
    assert [(one.iteration, one.complete, one.latest) for one in found] == [
        (9, True, False),
        (10, True, True),
        (100, False, False),
    ]
    assert found[1].consumed_samples == 80 and found[1].saved_at is not None
    assert "manifest.json is missing" in (found[2].problem or "") and found[2].consumed_samples is None


def test_the_table_has_a_line_for_each(checkpoints: Path) -> None:
    head, nine, ten, hundred = checkpoint_table(listed(checkpoints))
    assert head.split() == ["ITERATION", "SAMPLES", "SAVED", "GB", "BACKUP", "STATE"]
    assert nine.split()[:2] == ["9", "72"] and nine.endswith(" complete")
    assert ten.endswith(" complete, latest") and hundred.split()[:3] == ["100", "?", "?"]


def test_a_checkpoint_that_is_not_finite_is_marked(checkpoints: Path) -> None:
    manifest = checkpoints / "global_step10" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "not_finite": "the loss is NaN"}))
    found = listed(checkpoints)
    assert [one.not_finite for one in found] == [None, "the loss is NaN", None]
    assert checkpoint_table(found)[2].endswith("not finite")


def test_a_missing_folder_has_no_checkpoints(tmp_path: Path) -> None:
    assert listed(tmp_path / "checkpoints") == []


def backed_up(checkpoints: Path, *places: tuple[str, What, str]) -> list[ListedCheckpoint]:
    """Return the listed backups of the checkpoint of iteration 10 with this ledger."""
    of = digest_here(checkpoints / "global_step10") or ""
    lines = [BackedUp(to=to, what=what, iteration=10, of=of, verified_at=now(), lost=lost) for to, what, lost in places]
    return listed(checkpoints, lines, {"/archive/me", "s3://bucket/me"})


def test_a_backup_of_another_save_of_that_iteration_is_none_of_it(checkpoints: Path) -> None:
    line = BackedUp(to="/archive/me", what=What.FULL, iteration=10, of="another", verified_at=now())
    assert not any(one.backups for one in listed(checkpoints, [line]))


def test_where_it_is_backed_up_is_said_by_numbers_and_what_these_are_below(checkpoints: Path) -> None:
    found = backed_up(
        checkpoints,
        ("s3://bucket/me", What.FULL, ""),
        ("/archive/me", What.FULL, ""),
        ("/archive/me", What.WEIGHTS, "it is not there"),
        ("/old", What.WEIGHTS, ""),
    )
    _, nine, ten, _, *places = checkpoint_table(found)
    assert "full [1][3], weights [2], lost [1]" in ten and nine.split()[4] == "-"
    assert (places[0], places[2]) == ("[1] /archive/me", "[3] s3://bucket/me")
    assert places[1].startswith("[2] /old, ") and "[backup] to" in places[1]
    assert [(one.to, one.named) for one in found[1].backups] == [
        *(("s3://bucket/me", True), ("/archive/me", True), ("/archive/me", True), ("/old", False)),
    ]


def test_a_long_or_hostile_place_stays_one_line_of_the_screen_and_tells_no_secret(checkpoints: Path) -> None:
    hostile = "s3://AKIA:SECRET/WORD@bucket/\x1b[2J\n" + "deep/" * 40 + "end"
    found = backed_up(checkpoints, (hostile, What.FULL, ""), ("/archive/me", What.FULL, ""))
    for width in (80, None):
        *_, there, shown = checkpoint_table(found, width)
        assert there == "[1] /archive/me" and shown.startswith("[2] s3://***@bucket")
        assert shown.isprintable() and "SECRET" not in shown and (width is None or len(shown) <= width + 20)
    assert "deep/end, " in shown.replace("…", "")
    assert "SECRET" not in "".join(one.to for one in found[1].backups)


@pytest.mark.parametrize(
    ("to", "shown"),
    [
        ("/a@b:c?d#e", "/a@b:c?d#e"),
        ("s3://bucket/a@b:c", "s3://bucket/a@b:c"),
        ("http://host:9000/b", "http://host:9000/b"),
        ("gs://b/x?token=word", "gs://b/x?***"),
        ("sftp://me:word@host/x#word", "sftp://***@host/x?***"),
    ],
)
def test_of_a_url_what_may_be_a_secret_is_not_shown(to: str, shown: str) -> None:
    assert shown_place(to) == shown
