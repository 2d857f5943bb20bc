"""Triage during other writes: a log that grows or is truncated, two at once, files of a newer release."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest

from opsctl.diagnosis.nodes.judging import score_of
from opsctl.diagnosis.nodes.node_evidence import read_node_evidence
from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.findings import SlurmEnd
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.on_close import facts_of, note_node, verdict_of
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.rules import shipped_rules
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.config.paths import RunPaths

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
START = b"START TIME: 2026-11-21T12:00:00+00:00 attempt 1, job 71 (71), revision 1, from the beginning, nodes n0 n1\n"
ECC = b"[default1]:[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
ITERATION = b" iteration %8d/  500000 | consumed samples: %d | lm loss: 2.1E+00 |\n"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "out")
    paths.logs.mkdir(parents=True)
    folder = paths.attempt_folder(71)
    folder.mkdir(parents=True)
    places = [{"rank": rank, "node": f"n{rank // 4}", "local_rank": rank % 4} for rank in range(8)]
    (folder / "ranks-0.json").write_text(json.dumps(places))
    return paths


def an_attempt() -> Attempt:
    return Attempt(
        number=1, id="71-x", job_id=71, nodes=("n0", "n1"), opened_at=NOON, closed_at=NOON, reason=Ending.FAILED
    )


@contextmanager
def before_each_read(do: Callable[[], object]) -> Iterator[list[int]]:
    """Call `do` before each read of a file by position. Yield the list of the sizes that were read."""
    sizes: list[int] = []
    read = os.pread

    def pread(fd: int, size: int, at: int) -> bytes:
        do()
        data = read(fd, size, at)
        sizes.append(len(data))
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", pread)
        yield sizes


def test_a_log_that_grows_is_judged_by_what_was_there_and_one_cut_short_costs_nothing_else(paths: RunPaths) -> None:
    log = paths.main_log
    begun = START + b"".join(ITERATION % (number, number) for number in range(5_000)) + ECC
    log.write_bytes(begun)

    def grow() -> None:
        with log.open("ab") as file:
            file.write(b"chatter of a library that has not heard of the end\n" * 100)

    with before_each_read(grow) as sizes:
        verdict = decide(read_log(LogPart(log), shipped_rules(), 60), shipped_rules())
    assert (verdict.cause, verdict.rank) == ("gpu-ecc", 5) and len(sizes) > 2

    for whole_reads in range(8):
        log.write_bytes(begun)
        reads = iter(range(1000))
        with before_each_read(lambda: os.truncate(log, len(START)) if next(reads) == whole_reads else None) as sizes:  # noqa: B023
            verdict = decide(facts_of(paths, an_attempt(), SlurmEnd(), shipped_rules(), 60), shipped_rules())
        assert verdict.cause in ("gpu-ecc", "unknown")
        assert (log.stat().st_size == len(START)) is (len(sizes) > whole_reads)


def test_of_five_gigabytes_of_holes_the_attempts_part_is_found_and_read(paths: RunPaths) -> None:
    with paths.main_log.open("wb") as file:
        file.write(START)
        file.seek(5 << 30)
        file.write(b"\n" + ECC)
    with before_each_read(lambda: None) as sizes:
        facts = facts_of(paths, an_attempt(), SlurmEnd(), shipped_rules(), 60)
    assert sum(sizes) < 64 << 20, "a hole is not read"
    verdict = decide(facts, shipped_rules())
    assert (verdict.cause, verdict.node, verdict.rank) == ("gpu-ecc", "n1", 5)


def _judge(paths: RunPaths) -> None:
    verdict = verdict_of(paths, an_attempt(), SlurmEnd())
    assert verdict is not None
    note_node(paths, an_attempt(), verdict)


def test_several_triages_at_once_say_the_same_and_a_node_counts_once(paths: RunPaths) -> None:
    paths.main_log.write_bytes(START + ECC)
    fork = get_context("fork")
    others = [fork.Process(target=_judge, args=(paths,)) for _ in range(4)]
    for one in others:
        one.start()
    for one in others:
        one.join()
    assert [one.exitcode for one in others] == [0] * 4
    noted = read_node_evidence(paths)
    assert {(one.node, one.kind, one.attempt) for one in noted} == {("n1", "gpu-ecc", "71-x")}
    assert score_of([*noted, *noted], NOON) == score_of(noted[:1], NOON) > 0


def test_what_a_newer_release_has_left_of_nodes_and_ranks_is_passed_over(paths: RunPaths) -> None:
    paths.main_log.write_bytes(START + ECC)
    folder = paths.attempt_folder(71)
    (folder / "samples-0.jsonl").write_text('{"schema_version": 9, "node": {"n": 1}}\n{"at": "tomorrow"}\n[]\n\xff\n')
    (folder / "timings-0.jsonl").write_text('{"rank": "the third"}\n')
    (folder / "clock-0.json").write_text('{"said": 7}')
    facts = facts_of(paths, an_attempt(), SlurmEnd(), shipped_rules(), 60)
    assert facts.samples == () and facts.advances_s == {}
    assert decide(facts, shipped_rules()).node == "n1"


def test_of_nodes_whose_clocks_are_hours_apart_the_one_that_failed_first_is_told(paths: RunPaths) -> None:
    """By the file server's clock, n1 is three hours ahead and failed ten seconds before n0."""
    folder = paths.attempt_folder(71)
    ahead = timedelta(hours=3)
    for node, advance, at_s, words in (("n0", timedelta(), 10, "ValueError: 4"), ("n1", ahead, 0, "KeyError: 'de'")):
        number = int(node[1])
        clock = folder / f"clock-{number}.json"
        clock.write_text(json.dumps({"node": node, "clock": (NOON + advance).isoformat()}))
        os.utime(clock, (NOON.timestamp(), NOON.timestamp()))
        failed_at = (NOON + advance + timedelta(seconds=at_s)).isoformat()
        said = {"rank": 4 * number, "node": node, "local_rank": 0, "exit_code": 1, "failed_at": failed_at}
        (folder / f"failure-{number}.json").write_text(json.dumps({**said, "message": words}))
    paths.main_log.write_bytes(START)
    verdict = decide(facts_of(paths, an_attempt(), SlurmEnd(), shipped_rules(), 60), shipped_rules())
    assert (verdict.cause, verdict.node, verdict.rank) == ("user-code", "n1", 4)
