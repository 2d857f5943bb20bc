from __future__ import annotations

import shutil
from pathlib import Path

from opsctl.diagnosis.carbon.energy_files import find
from tests.unit.diagnosis.carbon.trackers import rank_file


def test_files_of_every_name_that_codecarbon_gives_are_found_and_others_are_not(tmp_path: Path) -> None:
    for name in ("emissions-000.csv", "emissions.csv.bak", "emissions.csv_0.bak", ".emissions.csv.tmp", "notes.txt"):
        (tmp_path / name).write_text(rank_file([(name, "10:00:00", 1, 4)]))
    found = find([tmp_path])
    assert found is not None
    assert sorted(one.run_id for one in found.readings) == [
        "emissions-000.csv",
        "emissions.csv.bak",
        "emissions.csv_0.bak",
    ]
    assert found.files == 3


def test_a_folder_and_its_copy_with_more_in_it_count_each_tracker_once(tmp_path: Path) -> None:
    there, copy = tmp_path / "a", tmp_path / "b"
    there.mkdir()
    for rank in range(4):
        (there / f"emissions-{rank:03}.csv").write_text(rank_file([(f"run {rank}", "10:00:00", 1, 4)]))
    shutil.copytree(there, copy)
    (copy / "emissions-002.csv").write_text(rank_file([("run 2", "10:00:00", 1, 4), ("run 2", "11:00:00", 2, 8)]))
    found = find([copy, there])
    assert found is not None
    assert sorted((Path(one.file).parent.name, one.gpu_kwh) for one in found.readings) == [("a", 4.0)] * 3 + [
        ("a", 8.0)
    ]


def test_what_cannot_be_read_is_said_and_hides_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(rank_file([("a", "10:00:00", 1, 4)]))
    (tmp_path / "b.csv").symlink_to("a.csv")
    (tmp_path / "c.csv").mkdir()
    (tmp_path / "d.csv").write_bytes(b"\xff\x00\xfe")
    found = find([tmp_path, tmp_path / "none"])
    assert found is not None
    assert [one.run_id for one in found.readings] == ["a"]
    assert len(found.problems) == 3


def test_a_look_reads_no_more_than_it_may(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(rank_file([(name, "10:00:00", 1, 4)]))
    assert find([tmp_path], most=2) is None
    assert find([tmp_path], most=3) is not None
