"""`opsctl watch training` and `opsctl queue` over real jobs in every state that a training's can be in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.run.logs.pulse import parse_pulse
from opsctl.run.logs.records import Alert, Pulse
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.watched_runs import WatchedRun, make_run
from tests.printed_json import printed

NEXT = "before scheduling a new one"
MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"


def job(job_id: str) -> str:
    """The end of a line, as a pattern."""
    return rf" \({job_id} on 'main' partition\)"


def alert(words: str) -> str:
    """An alert with these words, as a pattern."""
    return rf"\*\*\*ALERT: {words}! Alert someone at Eng WG\*\*\*"


#: run's name -> (exit code, its lines: the state that each reads back as, and what it says after the stamp).
EXPECTED = {
    "chain": (
        0,
        [
            ("running", rf"chain is running for 0:\d\d:\d\d since {MOMENT} \(ID_1 on 'main' partition \(node\d\)\)"),
            (
                "array-limit",
                rf"chain is waiting for the previous Job Array job to finish {NEXT}" + job(r"ID_\[2-3%1\]"),
            ),
            (
                "dependency",
                rf"chain is waiting for the previous job to finish {NEXT} using the dependency mechanism"
                + job(r"ID_\[1-2%1\]"),
            ),
        ],
    ),
    "later": (0, [("scheduled", rf"later is scheduled to start in (0:59:\d\d|1:00:00) \(at {MOMENT}\)" + job("ID"))]),
    "crowded": (0, [("scheduled", rf"crowded is scheduled to start in \S+ \(at {MOMENT}\)" + job("ID"))]),
    "held": (2, [("", alert(r"held is held \(JobHeld\w+\) and starts when it is released" + job("ID")))]),
    "never": (2, [("", alert("never waits for a dependency that can never be satisfied" + job("ID")))]),
    "gone": (2, [("", alert("gone is not RUNNING or SCHEDULED"))]),
}


@pytest.fixture(scope="module")
def runs(session_cluster: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WatchedRun]]:
    """A run in every state, all in one queue."""
    cluster = session_cluster
    cluster.cancel_everything()
    made = {}
    for name in EXPECTED:
        folder = tmp_path_factory.mktemp(name)
        made[name] = make_run(cluster, folder, name)
    failing = cluster.sbatch("exit 1")
    first = made["chain"].sbatch(
        "--array=1-3%1", "--nodes=1", "--exclusive", name='a name|with\nall sorts; of "things" ' * 5
    )
    made["chain"].sbatch("--array=1-2%1", f"--dependency=afterany:{first}")
    later = made["later"].sbatch("--begin=now+1hour")
    cluster.sbatch("sleep 600", "--nodes=3", "--exclusive", "--time=20")
    made["held"].sbatch("--hold")
    never = made["never"].sbatch(f"--dependency=afterok:{failing}", "--kill-on-invalid-dep=no")
    wait_until(lambda: "RUNNING" in said_of(cluster, first, "%T"), 30, "the chain's first task to run")
    crowded = made["crowded"].sbatch("--nodes=4", "--exclusive")
    wait_until(lambda: "N/A" not in said_of(cluster, crowded, "%S"), 60, "Slurm's guess when the crowded one starts")
    for job, reason in ((never, "DependencyNeverSatisfied"), (first, "JobArrayTaskLimit"), (later, "BeginTime")):
        wait_until(lambda job=job, reason=reason: reason in said_of(cluster, job, "%r"), 30, reason)  # type: ignore[misc]
    yield made
    cluster.cancel_everything()


def said_of(cluster: RunningCluster, job: int, field: str) -> str:
    """squeue's field of a job, a line per row of its array."""
    return cluster.run("squeue", "-h", "-j", str(job), "-o", field).stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_every_state_has_its_words_and_its_exit_code_and_both_reach_the_log(
    runs: dict[str, WatchedRun], name: str
) -> None:
    code, expected = EXPECTED[name]
    run = runs[name]
    run.log.write_text(" iteration 1/ 3 | half a line of the trainer")
    answer = run("watch", "training")
    assert (answer.code, answer.err) == (code, "")
    lines = answer.out.splitlines()
    assert len(lines) == len(expected), answer.out
    for line, (state, pattern) in zip(lines, expected, strict=True):
        said = re.sub(r"\((\d+)(_[^ ]*)? on", r"(ID\2 on", line)
        assert re.fullmatch(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] PULSE: " + pattern + r" \[[+-]\d\d:\d\d\]", said), line
        record = parse_pulse(line)
        assert isinstance(record, Alert if code else Pulse) and record.name == name
        assert (record.state if isinstance(record, Pulse) else "") == state
    assert run.log.read_text().splitlines() == [" iteration 1/ 3 | half a line of the trainer", *lines]


def test_no_log_leaves_the_log_alone(runs: dict[str, WatchedRun]) -> None:
    runs["held"].log.write_text("x\n")
    assert runs["held"]("watch", "training", "--no-log").code == 2
    assert runs["held"].log.read_text() == "x\n"


def test_a_log_that_cannot_be_written_is_said_and_hides_nothing(runs: dict[str, WatchedRun]) -> None:
    run = runs["later"]
    run.log.unlink(missing_ok=True)
    run.log.mkdir()
    answer = run("watch", "training")
    run.log.rmdir()
    assert answer.code == 0 and "is scheduled to start in" in answer.out
    assert answer.err.count("\n") == 1 and str(run.log) in answer.err


def test_programs_get_the_findings_with_their_severity(runs: dict[str, WatchedRun]) -> None:
    answer = runs["held"]("watch", "training", "--no-log", "--json")
    found = printed("watch training", answer.out)
    assert [(one["check"], one["severity"], one["alert"]) for one in found] == [("training", "critical", "Eng WG")]


def test_the_queue_lists_everybodys_and_marks_the_runs_own_whatever_their_names(runs: dict[str, WatchedRun]) -> None:
    answer = runs["chain"]("queue", "--json")
    jobs = printed("queue", answer.out)
    assert len(jobs) == 8  # three of the chain, and later, crowded, held, never and the one that fills three nodes
    assert sorted(job["array_task"] for job in jobs if job["own"]) == ["1", "1-2%1", "2-3%1"]
    assert max(len(job["name"]) for job in jobs) > 100
    table = runs["chain"]("queue").out.splitlines()
    assert len(table) == 9 and sum(line.startswith("* ") for line in table) == 3


def test_status_says_which_task_runs_and_what_is_behind_it(runs: dict[str, WatchedRun]) -> None:
    status = printed("status", runs["chain"].opsctl.ok("status", "--json"))
    assert (status["state"], status["job"]["array_task"]) == ("running", "1")
    assert [(job["array_task"], job["reason"]) for job in status["queue"]] == [
        ("2-3%1", "JobArrayTaskLimit"),
        ("1-2%1", "Dependency"),
    ]


@pytest.mark.parametrize(
    ("name", "state"), [("later", "waiting"), ("held", "held"), ("never", "held"), ("gone", "absent")]
)
def test_status_names_the_other_states(runs: dict[str, WatchedRun], name: str, state: str) -> None:
    assert printed("status", runs[name].opsctl.ok("status", "--json"))["state"] == state


def test_a_check_that_is_called_wrongly_is_unknown_not_critical(
    session_cluster: RunningCluster, tmp_path: Path
) -> None:
    run = WatchedRun(session_cluster, tmp_path)
    for words in (["watch", "training"], ["watch", "training", "--run", "nowhere"], ["watch", "no-such-check"]):
        answer = run(*words)
        assert answer.code == 3 and answer.out == "" and answer.err.count("\n") == 1, answer
