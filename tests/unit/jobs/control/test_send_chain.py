"""Arrays of more tasks than a Slurm takes, on any request. With a real Slurm: tests/cluster/test_sites.py."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.timestamps import now
from opsctl.jobs.control import carry_out, live_jobs, refill, send_chain
from opsctl.jobs.control.published import further_chain, send_further
from opsctl.jobs.control.refill import Decision, Word
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import chains
from opsctl.run.state.chains import REFILL, REQUEST, SUBMIT, Chain, append_chain, read_chains
from opsctl.run.state.requests import Action, Request
from opsctl.run.state.revisions import publish
from opsctl.slurm.cluster import Cluster
from tests.tiny_run import ready, write_run
from tests.unit.diagnosis.nodes.slurm_in_memory import SlurmInMemory
from tests.unit.run.state.test_chains import CHAIN, OURS


class OfAThousand(SlurmInMemory):
    """A Slurm whose arrays have a thousand tasks at most, and that takes `most` of them."""

    most, taken = 9, 12

    def configuration(self) -> dict[str, str]:
        return {"MaxArraySize": "1001"}

    def hides_others_jobs(self) -> bool:
        return False

    def submit(self, script: str) -> int:
        if self.taken == 12 + self.most:
            raise SlurmError("QOSMaxSubmitJobPerUserLimit")
        self.taken += 1
        return self.taken


@pytest.fixture
def slurm() -> Any:
    return OfAThousand()


def typed(folder: Path, *arrays: str, asked: str = "") -> RunPaths:
    """A run of which a user has submitted arrays."""
    run = load_run_file(write_run(folder), {})
    publish(ready(run))
    for number, array in enumerate(arrays, start=10):
        append_chain(
            run.paths, Chain(chain=number, submitted_at=now(), user="ann", array=array, asked=asked, how=SUBMIT)
        )
    return run.paths


def recorded(paths: RunPaths) -> Sequence[tuple[int, str, str, tuple[str, ...]]]:
    return [(one.chain, one.array, one.asked, one.after) for one in read_chains(paths) if one.chain > 12]


def test_a_further_chain_is_as_long_as_what_was_asked_for_in_pieces(tmp_path: Path) -> None:
    paths = typed(tmp_path, "1-1000%1", "1-500%1", asked="1-1500%1")
    assert further_chain(paths).array == "1-1500%1"


def test_a_chain_of_more_tasks_than_slurm_takes_is_sent_in_pieces_behind_each_other(tmp_path: Path, slurm: Any) -> None:
    paths = typed(tmp_path, "1-3%1")
    done = send_further(further_chain(paths, "1-2100%1"), Cluster(), slurm, live_jobs.LiveJobs((), ()), REQUEST, ("7",))
    assert [one.chain.chain for one in done.all] == [13, 14, 15]
    assert recorded(paths) == [
        (13, "1-1000%1", "1-2100%1", ("7",)),
        (14, "1-1000%1", "1-2100%1", ("7", "13")),
        (15, "1-100%1", "1-2100%1", ("7", "13", "14")),
    ]


def test_where_slurm_takes_only_the_first_arrays_of_a_long_one_those_are_named(tmp_path: Path, slurm: Any) -> None:
    paths, slurm.most = typed(tmp_path, "1-3%1"), 2
    further = further_chain(paths, "1-2100%1")
    with pytest.raises(SlurmError, match=r"13, 14, 2 of 3 .*QOSMaxSubmitJobPerUserLimit"):
        send_further(further, Cluster(), slurm, live_jobs.LiveJobs((), ()), REQUEST)
    assert [number for number, *_ in recorded(paths)] == [13, 14]


def test_a_request_for_more_tasks_than_slurm_takes_is_sent_in_pieces(
    tmp_path: Path, slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = typed(tmp_path, "1-3%1")
    monkeypatch.setattr(live_jobs, "settled", lambda *_: live_jobs.LiveJobs((), ()))
    request = Request(action=Action.EXTEND_CHAIN, owner="ann", tasks=1500)
    result = carry_out.on_queue(request, "ben", carry_out.Queue(paths, Cluster(), slurm, ()))
    assert "13 of tasks 1-1000%1, 14 of tasks 1-500%1" in result.words


def test_a_refill_counts_each_piece_as_an_array(tmp_path: Path, slurm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = typed(tmp_path, "1-1000%1", "1-500%1", asked="1-1500%1")
    monkeypatch.setattr(live_jobs, "settled", lambda *_: live_jobs.LiveJobs((), ()))
    monkeypatch.setattr("opsctl.slurm.backends.client_for", lambda _: slurm)
    monkeypatch.setattr(refill, "decide", lambda *_: Decision(Word.MISSING, "nothing in the queue", 3))
    done = refill._refilled(paths, Cluster())
    assert [one.chain.chain for one in done.submitted] == [13, 14, 15, 16]
    assert [(array, after) for _, array, _, after in recorded(paths)] == [
        ("1-1000%1", ()),
        ("1-500%1", ("13",)),
        ("1-1000%1", ("13", "14")),
        ("1-500%1", ("13", "14", "15")),
    ]
    assert {one.how for one in read_chains(paths)[2:]} == {REFILL}


def test_a_chain_that_slurm_took_is_remembered_where_it_cannot_be_recorded(
    tmp_path: Path, slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = typed(tmp_path, "1-3%1")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(chains, "append_chain", fails)
    with pytest.raises(OpsctlError, match="13"):
        send_further(further_chain(paths, "1-2%1"), Cluster(), slurm, live_jobs.LiveJobs((), ()), REQUEST)
    assert (paths.state / "submitting.json").exists()


def test_the_nodes_of_the_exclusion_list_are_kept_out_next_to_those_of_the_user(tmp_path: Path) -> None:
    run = ready(load_run_file(write_run(tmp_path), {}))
    chain = Chain(chain=0, submitted_at=now(), user="ann", array="1-2%1", exclude="n1", listed="n2", nodes=run.nodes)
    assert "#SBATCH --exclude=n1,n2\n" in send_chain.batch_text(run, Cluster(), chain, "1d")


@pytest.mark.parametrize(
    ("slurm_says", "to_change"),
    [
        ("Invalid account or account/partition combination specified", "[slurm] account"),
        ("Invalid partition name specified", "[slurm] partition"),
        ("Requested partition configuration not available now", "[slurm] partition"),
        ("Invalid qos specification", "[slurm] qos"),
        ("Invalid feature specification", "[slurm] constraint"),
        ("Requested reservation is invalid", "[slurm] reservation"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "[slurm] time"),
        ("Requested node configuration is not available", "[slurm] nodes, gpus_per_node and gpu_type"),
        ("Node count specification invalid", "[slurm] nodes"),
        ("Invalid generic resource (gres) specification", "[slurm] gpus_per_node and gpu_type"),
        ("Invalid node name specified", "--exclude"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "nodes and time"),
        ("Job dependency problem", "--after"),
        ("Invalid job array specification", "--array"),
        ("job 67108876 of a federation", "cluster"),
        ("Something new", "[slurm]"),
    ],
)
def test_slurms_words_say_what_to_change(slurm_says: str, to_change: str) -> None:
    assert to_change in send_chain.way_out(f"Slurm: {slurm_says}")


def test_a_damaged_record_of_a_submission_is_named_with_the_remedy(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.state.mkdir()
    (paths.state / "submitting.json").write_text('{"chain": 0')
    with pytest.raises(OpsctlError, match=r"submitting\.json.*remove"):
        send_chain.settle(paths, [OURS])


def test_a_cut_off_submission_that_slurm_has_is_recorded_once(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.state.mkdir()
    chains.write_submitting(paths, structs.replace(CHAIN, chain=0))
    assert send_chain.settle(paths, [OURS]) == CHAIN
    assert send_chain.settle(paths, [OURS]) is None
    assert chains.read_chains(paths) == [CHAIN]


def test_a_cut_off_submission_that_slurm_does_not_have_is_forgotten(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.state.mkdir()
    chains.write_submitting(paths, structs.replace(CHAIN, chain=0))
    assert send_chain.settle(paths, [structs.replace(OURS, comment="opsctl run=5eed submit=0ld")]) is None
    assert chains.read_chains(paths) == []
    assert send_chain.settle(paths, [OURS]) is None
