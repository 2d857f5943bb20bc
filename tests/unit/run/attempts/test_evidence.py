"""The files that ranks leave in an attempt's folder, complete or truncated."""

from __future__ import annotations

import json
from pathlib import Path

from opsctl.run.attempts.outcome import Evidence, read_evidence
from trainer.formats.attempt.attempt_records import RankPlace


def test_the_rank_map_joins_every_nodes_file_in_rank_order(tmp_path: Path) -> None:
    for node, ranks in ((1, (2, 3)), (0, (0, 1))):
        places = [
            {"rank": rank, "local_rank": rank % 2, "node": f"x0{node + 1}", "gpu": str(rank % 2), "pid": 1}
            for rank in ranks
        ]
        (tmp_path / f"ranks-{node}.json").write_text(json.dumps(places))
    assert read_evidence(tmp_path, tmp_path).ranks == (
        RankPlace(0, "x01", "0", 0, 1),
        RankPlace(1, "x01", "1", 1, 1),
        RankPlace(2, "x02", "0", 0, 1),
        RankPlace(3, "x02", "1", 1, 1),
    )


def test_failures_and_error_files_are_found(tmp_path: Path) -> None:
    kept = tmp_path / "x02" / "7_ab" / "attempt_0" / "1" / "error.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    record = {
        "rank": 3,
        "local_rank": 1,
        "node": "x02",
        "exit_code": 1,
        "signal": None,
        "failed_at": "2026-11-21T08:15:51.5+00:00",
        "message": "boom",
        "error_file": str(kept),
    }
    (tmp_path / "failure-1.json").write_text(json.dumps(record))
    evidence = read_evidence(tmp_path, tmp_path)
    assert [(item.rank, item.node, item.exit_code, item.message) for item in evidence.failures] == [
        (3, "x02", 1, "boom")
    ]
    assert evidence.error_files == (str(kept),)


def test_an_error_file_that_no_failure_names_is_found_too(tmp_path: Path) -> None:
    kept = tmp_path / "x01" / "attempt_0" / "error.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    assert read_evidence(tmp_path, tmp_path).error_files == (str(kept),)


def test_what_somebody_put_there_has_nobody_look_through_a_file_system(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "13"
    for one in (elsewhere / "deep", folder):
        one.mkdir(parents=True)
    (elsewhere / "deep" / "error.json").write_text("{}")
    (folder / "x01").symlink_to(elsewhere)
    assert read_evidence(tmp_path, folder).error_files == ()


def test_the_last_iteration_comes_from_whichever_node_printed_it(tmp_path: Path) -> None:
    (tmp_path / "x01.out").write_text("[default0]:saving checkpoint at iteration     900 to /c\n")
    line = "[default1]: iteration {:8d}/  100000 | consumed samples:          892 | lm loss: 1.0\n"
    (tmp_path / "x02.out").write_text(
        "x" * 200_000 + "\n" + "".join(line.format(n) for n in (7, 8, 9)) + " iteration  1"
    )
    assert read_evidence(tmp_path, tmp_path).logged_iteration == 9


def test_damaged_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "ranks-0.json").write_text('[{"rank": 0, "no')
    (tmp_path / "ranks-1.json").write_text('[{"rank": "two"}, 3, {"rank": 1, "node": null, "gpu": null}]')
    (tmp_path / "failure-0.json").write_bytes(b"\xff")
    (tmp_path / "exit.json").write_text('{"reason": 3, "iteration": "x"}')
    assert read_evidence(tmp_path, tmp_path) == Evidence(ranks=(RankPlace(1, ""),))


def test_no_folder_is_no_evidence(tmp_path: Path) -> None:
    assert read_evidence(tmp_path, tmp_path / "nothing") == Evidence()
