"""The verdict when an attempt is closed: from files, in time, recorded once per node, never blocking the closing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from opsctl.cli import main
from opsctl.core.files.state_files import append_state
from opsctl.diagnosis.nodes.node_evidence import read_node_evidence
from opsctl.diagnosis.triage import on_close
from opsctl.diagnosis.triage.findings import SlurmEnd
from opsctl.diagnosis.triage.on_close import judge_lost, note_node, verdict_of
from opsctl.diagnosis.triage.read_evidence import part_of_attempt
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.attempt_folder import set_aside
from opsctl.run.state.chains import Cancel
from opsctl.slurm.types import JobEnd
from tests.printed_json import printed

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ECC = "[default1]:[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    (tmp_path / "run.toml").write_text('[run]\nname = "small"\noutput = "out"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")  # no Slurm available
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("OPSCTL_RUN", "OPSCTL_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    paths = RunPaths(tmp_path / "out")
    paths.logs.mkdir(parents=True)
    return paths


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the local time zone to UTC: a screen shows local time."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def start(number: int, job: int) -> str:
    begun = f"START TIME: 2026-11-21T12:00:00+00:00 attempt {number}, job {job} ({job}), revision 1"
    return f"{begun}, from the beginning, nodes n0 n1"


def an_attempt(
    paths: RunPaths, number: int = 1, *said: str, reason: Ending = Ending.FAILED, lost_nodes: tuple[str, ...] = ()
) -> Attempt:
    """Return an attempt that ended after this message, recorded and in the log."""
    job = 70 + number
    with paths.main_log.open("a") as log:
        log.writelines(f"{line}\n" for line in (start(number, job), *said))
    folder = paths.attempt_folder(job)
    folder.mkdir(parents=True)
    for node in (0, 1):
        places = [{"rank": 4 * node + local, "node": f"n{node}", "local_rank": local} for local in range(4)]
        (folder / f"ranks-{node}.json").write_text(json.dumps(places))
    attempt = Attempt(number=number, id=f"{job}-x", job_id=job, nodes=("n0", "n1"), opened_at=NOON)
    append_opened(paths, attempt)
    ended = replace(
        attempt,
        closed_at=NOON.replace(hour=14),
        closed_by="job",
        reason=reason,
        iteration_at_end=25,
        exit_code=1,
        lost_nodes=lost_nodes,
    )
    append_closed(paths, ended)
    return ended


def triage(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["triage", *words])
    assert not stop.value.code, capsys.readouterr().err
    return capsys.readouterr().out


def test_the_part_of_an_attempt_is_from_its_start_line_to_the_next_ones(paths: RunPaths) -> None:
    for number in (1, 2, 3):
        an_attempt(paths, number, f"line of {number}")
    part = part_of_attempt(paths.output, paths.main_log, 2, 72, 10)
    assert part is not None
    text = paths.main_log.read_bytes()[part.begin : part.end].decode()
    assert text == f"{start(2, 72)}\nline of 2\n"
    assert part_of_attempt(paths.output, paths.main_log, 4, 74, 10) is None


def test_a_node_that_is_to_blame_is_on_record_once_however_often_the_attempt_is_judged(paths: RunPaths) -> None:
    attempt = an_attempt(paths, 1, ECC)
    verdict = verdict_of(paths, attempt, SlurmEnd())
    assert verdict is not None and (verdict.cause, verdict.node, verdict.rank) == ("gpu-ecc", "n1", 5)
    for _ in range(2):
        note_node(paths, attempt, verdict)
    (seen,) = read_node_evidence(paths)
    assert (seen.node, seen.kind, seen.attempt, seen.by) == ("n1", "gpu-ecc", "71-x", "triage")


def test_a_users_error_is_never_on_a_nodes_record(paths: RunPaths) -> None:
    attempt = an_attempt(paths, 1, "[rank5]: RuntimeError: CUDA error: device-side assert triggered")
    verdict = verdict_of(paths, attempt, SlurmEnd())
    assert verdict is not None and verdict.user_fault and verdict.node == "n1"
    note_node(paths, attempt, verdict)
    assert read_node_evidence(paths) == []


@pytest.mark.parametrize("reason", [Ending.FINISHED, Ending.EXIT_DURATION, Ending.STOP_REQUEST, Ending.KILL_SWITCH])
def test_an_end_that_was_wanted_has_no_verdict(paths: RunPaths, reason: Ending) -> None:
    assert verdict_of(paths, an_attempt(paths, 1, ECC, reason=reason), SlurmEnd()) is None


def test_what_cannot_be_told_in_time_or_fails_costs_the_verdict_and_nothing_else(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, said, may_end = an_attempt(paths, 1, ECC), list[str](), threading.Event()
    monkeypatch.setattr(on_close, "facts_of", lambda *_: may_end.wait(60))
    assert verdict_of(paths, attempt, SlurmEnd(), 0.2, said.append) is None
    monkeypatch.setattr(on_close, "facts_of", lambda *_: 1 / 0)
    assert verdict_of(paths, attempt, SlurmEnd(), 5, said.append) is None
    assert "0 s" in said[0] and "ZeroDivisionError" in said[1]
    may_end.set()


def test_where_no_thread_is_to_be_had_there_is_no_verdict_and_nothing_else_is_lost(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    attempt, said = an_attempt(paths, 1, ECC), list[str]()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert verdict_of(paths, attempt, SlurmEnd(), 5, said.append) is None
    assert len(said) == 1 and "start new thread" in said[0]


@pytest.mark.parametrize("reason", [Ending.SIGNAL, Ending.NODE_FAILURE, Ending.OUT_OF_MEMORY, Ending.UNKNOWN])
def test_an_end_that_nobody_wanted_has_a_verdict(paths: RunPaths, reason: Ending) -> None:
    assert verdict_of(paths, an_attempt(paths, 1, ECC, reason=reason), SlurmEnd()) is not None


def test_a_hang_is_a_bad_end_that_triage_tells(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    an_attempt(paths, 1, "[rank0]: iteration 3", reason=Ending.HANG)
    told = printed("triage", triage(capsys, "--json"))
    assert (told["attempt"], told["job"], told["reason"]) == (1, "71", Ending.HANG)


def test_whoever_closes_for_a_lost_job_finds_what_is_on_disk_and_takes_slurms_word(paths: RunPaths) -> None:
    attempt = an_attempt(paths, 1, reason=Ending.NODE_FAILURE, lost_nodes=("n1",))
    end = JobEnd(71, "NODE_FAIL", 0, 0, NOON, NOON, "n[0-1]")
    judged = judge_lost(paths)(attempt, end)
    assert judged.verdict is not None and (judged.verdict.cause, judged.verdict.node) == ("node-failure", "n1")
    assert [one.node for one in read_node_evidence(paths)] == ["n1"]


def test_a_log_that_is_closed_or_gone_is_named_once_and_records_still_tell(paths: RunPaths) -> None:
    attempt = an_attempt(paths, 1, ECC)
    paths.main_log.unlink()
    output = paths.attempt_folder(71) / "n1" / "71_x" / "attempt_0" / "1" / "stderr.log"
    output.parent.mkdir(parents=True)
    output.write_text(ECC.removeprefix("[default1]:") + "\n")
    facts = on_close.facts_of(paths, attempt, SlurmEnd(), on_close.chosen_rules(), 10)
    assert len(facts.unread) == 1 and "main_log.txt" in facts.unread[0]
    verdict = verdict_of(paths, attempt, SlurmEnd())
    assert verdict is not None and (verdict.cause, verdict.node) == ("gpu-ecc", "n1")


def test_records_of_another_release_are_read_as_far_as_they_are_known(paths: RunPaths) -> None:
    attempt = an_attempt(paths, 1, ECC)
    folder = paths.attempt_folder(71)
    (folder / "failure-0.json").write_text('{"schema": 9, "rank": 2, "node": {"name": "n0"}, "message": ["?"]}')
    (folder / "failure-1.json").write_text("{")
    verdict = verdict_of(paths, attempt, SlurmEnd())
    assert verdict is not None and (verdict.cause, verdict.node) == ("gpu-ecc", "n1")


def test_the_command_tells_the_last_bad_end_on_a_screen_without_slurm(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None], in_utc: None
) -> None:
    an_attempt(paths, 1, ECC)
    an_attempt(paths, 2, reason=Ending.FINISHED)
    golden("triage/gpu-ecc.txt", triage(capsys))
    told = printed("triage", triage(capsys, "--json"))
    assert (told["attempt"], told["job"], told["cause"], told["rank"], told["node"]) == (1, "71", "gpu-ecc", 5, "n1")
    assert (told["lost_iterations"], told["lost_s"], told["lost_gpu_hours"]) == (25, 7200, 16.0)
    assert any(line.startswith("opsctl exclude add n1 ") for line in told["todo"])


def test_the_command_takes_a_job_or_an_attempt_and_prints_what_a_program_reads(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    an_attempt(paths, 1, ECC)
    an_attempt(paths, 2, "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    for word, cause in (("71", "gpu-ecc"), ("72", "gpu-oom"), ("1", "gpu-ecc"), ("#2", "gpu-oom")):
        told = printed("triage", triage(capsys, word, "--json"))
        assert (told["cause"], told["attempt"]) == (cause, 1 if cause == "gpu-ecc" else 2)
    assert (told["user_fault"], told["rank"], told["node"]) == (True, 3, "n0")
    assert told["evidence"][0]["source"] == "main_log.txt" and told["evidence"][0]["line"] == 4


def test_who_cancelled_it_and_when_is_told_of_what_was_cancelled_by_opsctl(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None], in_utc: None
) -> None:
    an_attempt(paths, 1, ECC)
    an_attempt(paths, 2, reason=Ending.CANCELLED)
    by_scancel = printed("triage", triage(capsys, "--json"))
    assert (by_scancel["cause"], by_scancel["cancelled"]) == ("cancelled", None)
    assert "the user's" not in triage(capsys)  # Slurm does not record the user of scancel
    cancels = [
        Cancel(at=NOON.replace(hour=13), by="ann", host="login1", jobs=("71", "72"), chains=1),
        Cancel(at=NOON.replace(hour=23), by="bob", host="login2", jobs=("72",), chains=1),  # another job of that id
    ]
    for cancel in cancels:
        append_state(paths.output, paths.cancels, cancel)
    golden("triage/cancelled.txt", triage(capsys))
    told = printed("triage", triage(capsys, "--json"))
    assert (told["cancelled"]["by"], told["cancelled"]["host"], told["user_fault"]) == ("ann", "login1", False)
    assert "ann" in told["todo"][0] and "opsctl submit" in told["todo"] and "ann" not in by_scancel["todo"][0]
    assert printed("triage", triage(capsys, "71", "--json"))["cancelled"] is None  # the node did it


def test_any_log_is_read_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], paths: RunPaths) -> None:
    (tmp_path / "torchrun.log").write_text(
        "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nKeyError: 'x'\n"
    )
    told = printed("triage", triage(capsys, "--log", str(tmp_path / "torchrun.log"), "--json"))
    assert (told["cause"], told["user_fault"], told["attempt"]) == ("user-code", True, None)


def test_a_cause_that_is_not_found_is_said_with_the_last_lines(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None], in_utc: None
) -> None:
    an_attempt(paths, 1, "nothing that a rule means", "the last one")
    golden("triage/not-found.txt", triage(capsys))
    told = printed("triage", triage(capsys, "--json"))
    assert (told["cause"], told["last_lines"][-1]["text"]) == ("unknown", "the last one")


def test_the_last_lines_of_a_dead_attempt_are_its_own_while_the_next_one_lives(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    an_attempt(paths, 1, "from 1")
    an_attempt(paths, 2, "from 2")
    with paths.main_log.open("a") as log:
        log.writelines(f"{line}\n" for line in (start(3, 73), *("the third lives" for _ in range(30))))
    told = printed("triage", triage(capsys, "2", "--json"))
    assert [one["text"] for one in told["last_lines"]] == ["from 2"]
    assert "the third lives" not in triage(capsys, "2") and "the third lives" not in triage(capsys, "1")


def test_a_dead_attempt_is_judged_by_its_own_folder_while_its_job_makes_another_attempt(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = an_attempt(paths, 1, "nothing that a rule means")
    folder = paths.attempt_folder(ended.job_id)
    note_failure(folder, "the first: RuntimeError: CUDA error: uncorrectable ECC error encountered")
    set_aside(folder)
    folder.mkdir()
    append_opened(paths, replace(ended, number=2, id="again", closed_at=None, reason=None))
    with paths.main_log.open("a") as log:
        log.write(f"{start(2, ended.job_id)}\n")
    note_failure(folder, "KeyError: 'of the second'")
    told = printed("triage", triage(capsys, "1", "--json"))
    assert told["cause"] == "gpu-ecc" and "of the second" not in str(told)
    folder.with_name(f"{folder.name}.1").rename(folder.with_name("lost"))
    # Its own folder is unknown, so none is read.
    assert "of the second" not in triage(capsys, "1", "--json")


def note_failure(folder: Path, message: str) -> None:
    failure = {"rank": 5, "node": "n1", "exit_code": 1, "message": message}
    (folder / "failure-1.json").write_text(json.dumps(failure))
