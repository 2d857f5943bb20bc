from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmError, SlurmUnreachable
from opsctl.core.files.state_files import read_lines
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes import exclusion
from opsctl.diagnosis.nodes.exclusion import Kept, Wanted, apply_to_queue, excluded_now, keep, keep_and_apply, wanted_by
from opsctl.diagnosis.nodes.exclusion_list import Decision, Place, own_place, read_excluded
from opsctl.diagnosis.nodes.judging import ends_of
from opsctl.diagnosis.nodes.listing import list_nodes, node_lines
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence, append_node_evidence
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.attempts.verdict import Verdict
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import NodesTable, SlurmTable
from opsctl.run.state.chains import Chain, append_chain
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job
from tests.facts import missing
from tests.unit.diagnosis.nodes.slurm_in_memory import SlurmInMemory, in_memory, job
from trainer.formats.attempt.attempt_records import Failure

WANTED = Wanted(partition=None, nodes=2)
TABLE = NodesTable()


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "output")
    found.state.mkdir(parents=True)
    found.run_id.write_text("0123abcd\n")
    return found


def see(
    paths: RunPaths, node: str, kind: str = "gpu-ecc", confidence: float = 0.9, at: datetime | None = None
) -> NodeEvidence:
    seen = NodeEvidence(node=node, kind=kind, at=at or now(), words="Xid 48", confidence=confidence, by="triage")
    append_node_evidence(paths, seen)
    return seen


def crash(paths: RunPaths, number: int, node: str, at: datetime | None = None, cause: str = "gpu-error") -> None:
    attempt = Attempt(number=number, id=f"{number}-a", job_id=number, nodes=("n1", "n2"), opened_at=now())
    append_opened(paths, attempt)
    closing = {"closed_at": at or now(), "closed_by": "job", "reason": "signal"}
    first = Failure(rank=3, node=node, signal=9)
    verdict = Verdict(cause=cause, summary=f"{cause}: rank 3 on {node}", node=node, confidence=0.5)
    append_closed(paths, msgspec.structs.replace(attempt, first_failure=first, verdict=verdict, **closing))


def test_where_nothing_speaks_against_any_node_slurm_is_not_asked(paths: RunPaths) -> None:
    slurm = in_memory()
    assert keep_and_apply(paths, slurm, WANTED) == [] and slurm.looks == 0
    assert not own_place(paths).excluded.exists()


def test_evidence_excludes_a_node_once_and_the_decision_records_it(paths: RunPaths) -> None:
    see(paths, "n2")
    first = keep(paths, in_memory(), WANTED, TABLE)
    assert first.excluded == ("n2",) and missing(first.news[0], "n2", "gpu-ecc", "0.90") == []
    again = keep(paths, in_memory(), WANTED, TABLE)
    assert again.excluded == ("n2",) and again.news == ()
    place = own_place(paths)
    (decision,) = read_lines(place.root, place.decisions, Decision)
    assert (decision.node, decision.what, decision.by) == (
        "n2",
        "excluded",
        "evidence",
    ) and "Xid 48" in decision.evidence[0]


def test_with_auto_false_only_people_exclude(paths: RunPaths) -> None:
    see(paths, "n2")
    exclusion.add(own_place(paths), ["n3"], "slow", now() + timedelta(days=1))
    kept = keep(paths, in_memory(), WANTED, NodesTable(auto=False))
    assert kept.excluded == ("n3",)


@pytest.mark.parametrize("cause", ["unknown", "hang", "nccl", "network", "host-oom", "user-code"])
def test_ranks_killed_on_one_node_without_a_word_of_its_hardware_exclude_nothing(paths: RunPaths, cause: str) -> None:
    for number in range(1, 5):
        crash(paths, number, "n2", cause=cause)
        assert keep(paths, in_memory(), WANTED, TABLE) == Kept()


def test_two_crashes_on_one_node_exclude_it_from_the_rest_of_the_chain_with_one_request(paths: RunPaths) -> None:
    chain = Chain(chain=12, submitted_at=now(), user=account_name(), array="1-3%1", own_exclude="n4", listed="")
    append_chain(paths, chain)
    others = job(13, "1-2%1", "0123abcd", user="somebody-else")
    slurm = in_memory(queue=[job(12, "2-3%1", "0123abcd"), others])
    crash(paths, 1, "n2")
    assert keep_and_apply(paths, slurm, WANTED) == [] and slurm.asked == []
    crash(paths, 2, "n2")
    lines = keep_and_apply(paths, slurm, WANTED)
    assert slurm.asked == [("12_[2-3]", "n2,n4")]
    assert missing(lines[0], "n2", "2 attempts") == missing(lines[1], "chain 12", "n2, n4") == []
    assert keep_and_apply(paths, slurm, WANTED) == [] and len(slurm.asked) == 1
    exclusion.remove(own_place(paths), ["n2"])
    (line,) = keep_and_apply(paths, slurm, WANTED)
    assert missing(line, "chain 12", "n4", "n2") == ["n2"]
    assert slurm.asked[1:] == [("12_[2-3]", "n4")]


def test_what_was_submitted_without_the_node_is_left_alone(paths: RunPaths) -> None:
    append_chain(
        paths, Chain(chain=12, submitted_at=now(), user=account_name(), array="1", own_exclude="", listed="n2")
    )
    slurm = in_memory(queue=[job(12, "", "0123abcd")])
    assert apply_to_queue(paths, slurm, ["n2"]) == [] and slurm.asked == []


def test_a_node_that_slurm_no_longer_has_is_handed_to_nobody(paths: RunPaths) -> None:
    exclusion.add(own_place(paths), ["n2", "n9"], "gone", now() + timedelta(days=1))
    assert keep(paths, in_memory(), WANTED, TABLE).excluded == ("n2",)


def test_a_list_with_all_nodes_is_said_to_leave_too_few(paths: RunPaths) -> None:
    exclusion.add(own_place(paths), ["n1", "n2", "n3", "n4"], "maintenance", now() + timedelta(days=1))
    kept = keep(paths, in_memory(), WANTED, TABLE)
    assert len(kept.excluded) == 4 and "4 of the 4 " in kept.news[0] and "remove" in kept.news[0]


def test_a_list_of_a_newer_release_is_read_and_never_written(paths: RunPaths) -> None:
    until = (now() + timedelta(days=1)).isoformat()
    node = {"node": "n3", "since": now().isoformat(), "until": until, "by": "ann", "why": "w", "colour": "red"}
    text = json.dumps({"version": 2, "nodes": [node, {"node": 7}], "mood": "good"})
    place = own_place(paths)
    place.excluded.write_text(text)
    see(paths, "n2")
    kept = keep(paths, in_memory(), WANTED, TABLE)
    assert kept.excluded == ("n3",) and str(place.excluded) in kept.problem
    refused = r"newer .*version 2.* 1\b"
    with pytest.raises(OpsctlError, match=refused):
        exclusion.add(place, ["n1"], "w", now())
    with pytest.raises(OpsctlError, match=refused):
        exclusion.remove(place, ["n3"])
    assert place.excluded.read_text() == text


def test_torn_and_strange_lines_of_evidence_are_passed_over(paths: RunPaths) -> None:
    see(paths, "n2")
    with paths.node_evidence.open("ab") as file:
        file.write(b'{"node": "n3", "kind": "gpu-ecc", "at": "2026-03-02T12:00:00Z", "words": "x", "confid')
    see(paths, "n4", kind="of-a-later-release")
    assert keep(paths, in_memory(), WANTED, TABLE).excluded == ("n2",)


def test_an_invalid_list_of_excluded_nodes_is_named_and_not_overwritten(paths: RunPaths) -> None:
    place = own_place(paths)
    place.excluded.write_text("[]")
    (line,) = keep_and_apply(paths, in_memory(), WANTED)
    assert str(place.excluded) in line and place.excluded.read_text() == "[]"


_ADDS = """
import sys
from datetime import timedelta
from pathlib import Path
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes import exclusion as keeping
from opsctl.diagnosis.nodes.exclusion_list import Place
for number in range(5):
    keeping.add(Place(Path(sys.argv[1]), Path(sys.argv[1])), [f"{sys.argv[2]}{number}"], "w", now() + timedelta(days=1))
"""


def test_two_processes_that_add_at_once_lose_no_exclusion(tmp_path: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", _ADDS, str(tmp_path), name]) for name in ("a", "b")]
    assert [one.wait(60) for one in both] == [0, 0]
    found = json.loads((tmp_path / "excluded-nodes.json").read_text())
    assert len(found["nodes"]) == 10 and found["version"] == 1


def test_a_groups_runs_share_evidence_and_exclusions(tmp_path: Path) -> None:
    table = NodesTable(shared=str(tmp_path / "shared"))
    first, second = RunPaths(tmp_path / "one"), RunPaths(tmp_path / "two")
    for paths in (first, second):
        paths.state.mkdir(parents=True)
    see(first, "n2", kind="slow")
    assert keep(first, in_memory(), WANTED, table).excluded == ()
    see(second, "n2", kind="slow")
    assert keep(second, in_memory(), WANTED, table).excluded == ("n2",)
    assert keep(first, in_memory(), WANTED, table).excluded == ("n2",)
    lines = (tmp_path / "shared" / "node-evidence.jsonl").read_text().splitlines()
    assert len(lines) == 2 and not own_place(first).excluded.exists()
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o700


def test_a_removed_node_is_no_longer_listed_and_one_that_is_not_excluded_is_refused(paths: RunPaths) -> None:
    place = own_place(paths)
    exclusion.add(place, ["n2"], "slow", now() + timedelta(days=1))
    with pytest.raises(OpsctlError, match="not excluded: n3"):
        exclusion.remove(place, ["n2", "n3"])
    exclusion.remove(place, ["n2"])
    (record,) = read_excluded(place).nodes
    assert record.removed_by == account_name() and not record.stands(datetime.now(UTC))


class Refusing(SlurmInMemory):
    """A Slurm that refuses to change chain 10."""

    def exclude(self, ids: Iterable[str], folded: str) -> None:
        ids = list(ids)
        if ids[0].startswith("10"):
            raise SlurmError("Requested node configuration is not available")
        super().exclude(ids, folded)


def submitted(paths: RunPaths, chain: int, user: str = "") -> None:
    owner = user or account_name()
    append_chain(paths, Chain(chain=chain, submitted_at=now(), user=owner, array="1-3%1", own_exclude="", listed=""))


def test_a_chain_that_slurm_refuses_to_change_is_reported_and_the_next_one_is_changed(paths: RunPaths) -> None:
    submitted(paths, 10)
    submitted(paths, 20)
    slurm: Any = Refusing(queue=[job(10, "2-3%1", "0123abcd"), job(20, "1-3%1", "0123abcd")])
    first, second = apply_to_queue(paths, slurm, ["n1"])
    assert missing(first, "chain 10", "n1", "Requested node") == missing(second, "chain 20", "n1") == []
    (again,) = apply_to_queue(paths, slurm, ["n1"])  # what was done is on record, what was refused is tried again
    assert again == first and slurm.asked == [("20_[1-3]", "n1")]


def test_what_a_silent_slurm_was_told_before_is_on_record(paths: RunPaths) -> None:
    submitted(paths, 10)
    submitted(paths, 20)
    slurm = in_memory(queue=[job(10, "2-3%1", "0123abcd"), job(20, "1-3%1", "0123abcd")])

    def silent_at_20(ids: Iterable[str], folded: str) -> None:
        if "20_[1-3]" in ids:
            raise SlurmUnreachable("no answer")

    slurm.exclude = silent_at_20
    with pytest.raises(SlurmUnreachable):
        apply_to_queue(paths, slurm, ["n1"])
    assert json.loads(paths.queue_excludes.read_text())["chains"] == {"10": "n1"}


def test_two_people_with_chains_of_one_run_each_free_their_own_of_what_the_list_no_longer_has(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(paths, 10, "alice")
    submitted(paths, 20, "bob")
    queue = [job(10, "2-3%1", "0123abcd", user="alice"), job(20, "1-3%1", "0123abcd", user="bob")]

    def told(user: str, excluded: list[str], queue: list[Job] = queue) -> list[tuple[str, str]]:
        monkeypatch.setattr(exclusion, "account_name", lambda: user)
        slurm = in_memory(queue=[one for one in queue if one.user == user])
        apply_to_queue(paths, slurm, excluded)
        return list(slurm.asked)

    assert told("bob", ["n1"]) == [("20_[1-3]", "n1")]
    assert told("alice", ["n1"]) == [("10_[2-3]", "n1")]
    assert told("bob", []) == [("20_[1-3]", "")] and told("alice", []) == [("10_[2-3]", "")]
    assert told("alice", [], []) == [] and list(json.loads(paths.queue_excludes.read_text())["chains"]) == ["20"]


@pytest.mark.parametrize("what", ["evidence", "ends"])
def test_what_a_clock_that_is_ahead_has_dated_is_forgiven_too(paths: RunPaths, what: str) -> None:
    ahead = now() + timedelta(hours=3)
    if what == "evidence":
        see(paths, "n2", at=ahead)
    else:
        crash(paths, 1, "n2", ahead)
        crash(paths, 2, "n2", ahead)
    assert keep(paths, in_memory(), WANTED, TABLE).excluded == ("n2",)
    exclusion.remove(own_place(paths), ["n2"], ends_of(attempts_file.read(paths)))
    assert keep(paths, in_memory(), WANTED, TABLE) == Kept()


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59Z", "2999-01-01T00:00:00+00:00", "0001-01-01T00:00:00Z"])
def test_what_is_dated_at_an_impossible_time_is_passed_over(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    for zone in ("Asia/Tokyo", "America/Los_Angeles"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        with paths.node_evidence.open("a") as file:
            line = {"node": "n3", "kind": "gpu-ecc", "at": at, "words": "x", "confidence": 1.0, "by": zone}
            file.write(json.dumps(line) + "\n")
        see(paths, "n2")
        lines = keep_and_apply(paths, in_memory(), WANTED)
        assert not any("n3" in line for line in lines)
        assert read_excluded(own_place(paths)).in_force(now())[0].node == "n2"
        shown = list_nodes(paths, in_memory(), WANTED, ["n2", "n3"], now())
        assert len(node_lines(shown)) > 2
        crash(paths, 1, "n4", datetime.fromisoformat(at))
        crash(paths, 2, "n4", datetime.fromisoformat(at))
        assert keep(paths, in_memory(), WANTED, TABLE).excluded == ("n2",)
    monkeypatch.undo()
    time.tzset()


def test_runs_that_share_a_list_and_need_different_numbers_of_nodes_decide_once(tmp_path: Path) -> None:
    table = NodesTable(shared=str(tmp_path / "shared"))
    small, large = RunPaths(tmp_path / "one"), RunPaths(tmp_path / "two")
    for paths in (small, large):
        paths.state.mkdir(parents=True)
    see(small, "n2")
    place = Place(tmp_path / "shared", tmp_path / "shared")
    for look_number in range(3):
        first = keep(small, in_memory(), Wanted(None, 2), table)
        second = keep(large, in_memory(), Wanted(None, 4), table)
        assert first.excluded == ("n2",) and second.excluded == () and second.news == ()
        assert missing(second.lines[0], "n2", "needs 4") == [] and bool(first.news) == (look_number == 0)
        assert len(read_lines(place.root, place.decisions, Decision)) == 1


def test_a_run_that_uses_an_excluded_node_for_lack_of_others_shows_why(paths: RunPaths) -> None:
    see(paths, "n2")
    (line,) = keep_and_apply(paths, in_memory(), Wanted(None, 4))
    assert missing(line, "n2", "needs 4") == [] and excluded_now(paths, in_memory(), Wanted(None, 4)) == ()
    (shown,) = list_nodes(paths, in_memory(), Wanted(None, 4), ["n2"], now())
    assert "needs 4" in node_lines([shown])[1]
    assert excluded_now(paths, in_memory(), WANTED) == ("n2",)


def test_spare_nodes_and_a_chains_own_number_are_among_what_the_run_needs(paths: RunPaths) -> None:
    table = SlurmTable(nodes=3, spare=1, gpus_per_node=8, time="1:00", partition="main", exclude="n7")
    assert wanted_by(paths, table) == Wanted("main", 4, "n7")
    for chain, nodes in ((10, 6), (20, None)):
        line = Chain(chain=chain, submitted_at=now(), user="ann", array="1", nodes=nodes, exclude="n8")
        append_chain(paths, line)
    assert wanted_by(paths, table) == Wanted("main", 4, "n7,n8")
    assert wanted_by(paths, table, 10) == Wanted("main", 7, "n7,n8")
    see(paths, "n2")
    of_file = Wanted.of(SlurmTable(nodes=3, spare=1, gpus_per_node=8, time="1:00"))
    assert keep(paths, in_memory(), of_file, TABLE).excluded == ()


def test_nodes_that_are_out_of_service_are_not_counted_as_left(paths: RunPaths) -> None:
    exclusion.add(own_place(paths), ["n1"], "slow", now() + timedelta(days=1))
    slurm = in_memory()
    slurm.nodes = lambda: [Node(f"n{n}", "idle" if n <= 3 else "drained", "", ("main*",)) for n in range(1, 11)]
    (line,) = keep(paths, slurm, Wanted(None, 3), TABLE).news
    assert "1 of the 3 " in line and keep(paths, slurm, Wanted(None, 2), TABLE).news == ()
