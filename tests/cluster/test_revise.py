"""An edited run file reaches queued tasks through revise only, or through their replacement."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.tiny_run import write_checkpoint, write_run


@pytest.fixture
def opsctl(local_cluster: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder)
        yield Opsctl(local_cluster, folder)


def newest(opsctl: Opsctl, file: str) -> str:
    return (opsctl.state / "revisions" / opsctl.revisions()[-1] / file).read_text()


def running_chain(opsctl: Opsctl) -> int:
    """A chain of three whose first task runs: the run's script stood in for by one that stays."""
    opsctl.submit()
    opsctl.ok("cancel")
    record = {**opsctl.chains()[0], "arguments": ["--lr", "2e-3"], "exclude": "node4"}
    mark = f"--comment=opsctl run={opsctl.run_id()} submit={record['token']}"
    chain = opsctl.cluster.sbatch("sleep 600", mark, "--array=1-3%1", "--exclude=node4", "--nodes=2")
    (opsctl.state / "chains.jsonl").write_text(json.dumps({**record, "chain": chain}) + "\n")
    wait_until(lambda: f"{chain}_1|RUNNING" in opsctl.queue("%i|%T"), 20, "the first task to run")
    return chain


def test_an_edited_run_file_alone_changes_nothing(opsctl: Opsctl) -> None:
    opsctl.submit()
    before = opsctl.revisions()
    write_run(opsctl.folder, lr="5e-4")
    opsctl.ok("render")
    assert opsctl.revisions() == before and '"0.001"' in newest(opsctl, "trainer-arguments.json")


def test_revise_shows_the_difference_and_publishes_it(opsctl: Opsctl) -> None:
    chain = opsctl.submit()
    write_run(opsctl.folder, lr="5e-4")
    planned = opsctl("revise", "--dry-run")
    assert planned.code == 0 and planned.out == "" and len(opsctl.revisions()) == 1
    done = opsctl("revise")
    assert done.code == 0
    for answer in (planned, done):
        assert "trainer.lr: 0.001 -> 0.0005" in answer.err and '+    "lr": 0.0005' in answer.err
    assert done.out.strip() == opsctl.revisions()[-1] and len(opsctl.revisions()) == 2
    assert '"0.0005"' in newest(opsctl, "trainer-arguments.json")
    assert opsctl.queue("%A") == [str(chain)]
    again = opsctl("revise")
    assert "nothing differs" in again.err and again.out == done.out and len(opsctl.revisions()) == 2


def test_revise_says_into_which_layout_the_last_checkpoint_is_loaded(opsctl: Opsctl) -> None:
    opsctl.submit()
    write_checkpoint(opsctl.folder, 10, 80)
    run_file = opsctl.folder / "run.toml"
    run_file.write_text(run_file.read_text().replace("[trainer]", "[trainer]\ntensor_model_parallel_size = 2"))
    done = opsctl("revise", "--json")
    before, after = "TP 1 x PP 1 x DP 4", "TP 2 x PP 1 x DP 2"
    assert f"\nlayout: {before} -> {after}\n" in done.err
    assert json.loads(done.out)["revised"]["changed"]["layout"] == {"from": before, "to": after}


def test_revise_checks_what_it_publishes(opsctl: Opsctl) -> None:
    opsctl.submit()
    path = write_run(opsctl.folder)
    path.write_text(path.read_text().replace("num_attention_heads = 4", "num_attention_heads = 5"))
    answer = opsctl("revise")
    assert answer.code == 2 and "num_attention_heads" in answer.err and len(opsctl.revisions()) == 1


@pytest.mark.parametrize(
    ("change", "key"),
    [({"nodes": 4}, "nodes"), ({"time": "20:00"}, "time"), ({"slurm": 'exclude = "node1"'}, "exclude")],
)
def test_what_slurm_has_fixed_for_queued_tasks_is_refused_with_the_choice(
    opsctl: Opsctl, change: dict[str, object], key: str
) -> None:
    chain = opsctl.submit()
    write_run(opsctl.folder, **change)  # type: ignore[arg-type]
    for words in (["revise"], ["revise", "--dry-run"], ["submit", "--after", "auto"]):
        answer = opsctl(*words)
        assert answer.code == 1 and len(answer.err.strip().splitlines()) == 1
        assert f"[slurm] {key} changed" in answer.err and f"{chain}_[1-3%1]" in answer.err
        assert "opsctl revise --resubmit" in answer.err
    assert len(opsctl.revisions()) == 1


def test_with_nothing_queued_slurms_part_is_published_like_the_rest(opsctl: Opsctl) -> None:
    opsctl.submit()
    opsctl.ok("cancel")
    write_run(opsctl.folder, nodes=4)
    opsctl.ok("revise")
    assert '"nodes": 4' in newest(opsctl, "run.json")


def test_resubmit_lines_the_new_chain_up_behind_what_runs_then_cancels_the_old(opsctl: Opsctl) -> None:
    old = running_chain(opsctl)
    write_run(opsctl.folder, time="20:00")
    planned = opsctl("revise", "--resubmit", "--dry-run")
    assert planned.code == 0 and f"chain {old} would be replaced" in planned.err
    assert len(opsctl.queue("%i")) == 2 and len(opsctl.revisions()) == 1
    done = opsctl("revise", "--resubmit")
    assert done.code == 0, done.err
    new = opsctl.chains()[-1]
    assert opsctl.queue("%i|%T") == sorted([f"{old}_1|RUNNING", f"{new['chain']}_[2-3%1]|PENDING"])
    assert "20:00" in opsctl.queue("%l")
    assert f"afterany:{old}_*" in opsctl.cluster.run("squeue", "-h", "-j", str(new["chain"]), "-o", "%E").stdout
    assert (new["arguments"], new["exclude"], new["array"]) == (["--lr", "2e-3"], "node4", "2-3%1")
    script = opsctl.cluster.run("scontrol", "write", "batch_script", str(new["chain"]), "-").stdout
    assert "-- --lr 2e-3" in script
    opsctl.cluster.run("scancel", f"{old}_1")
    wait_until(lambda: any(row.startswith(f"{new['chain']}_2|") for row in opsctl.queue("%i|%T")), 20, "the new chain")


def test_a_held_chain_stays_held_when_replaced(opsctl: Opsctl) -> None:
    old = opsctl.submit()
    opsctl.cluster.run("scontrol", "hold", str(old))
    write_run(opsctl.folder, nodes=1)
    opsctl.ok("revise", "--resubmit")
    (row,) = opsctl.queue("%A|%r|%D")
    assert row == f"{opsctl.chains()[-1]['chain']}|JobHeldUser|1"


def test_a_resubmit_that_slurm_refuses_changes_nothing(opsctl: Opsctl) -> None:
    old = opsctl.submit()
    write_run(opsctl.folder, slurm='constraint = "antimatter"')
    answer = opsctl("revise", "--resubmit")
    assert answer.code == 1 and "constraint" in answer.err
    assert opsctl.queue("%A") == [str(old)]
    assert len(opsctl.revisions()) == 1 and len(opsctl.chains()) == 1


def test_several_queued_chains_are_replaced_in_their_order(opsctl: Opsctl) -> None:
    first = opsctl.submit("--", "--lr", "1e-4")
    second = opsctl.submit("--after", "auto", "--array", "1-5%1", "--", "--lr", "2e-4")
    write_run(opsctl.folder, nodes=1)
    opsctl.ok("revise", "--resubmit")
    new = opsctl.chains()[2:]
    assert [(record["array"], record["arguments"]) for record in new] == [
        ("1-3%1", ["--lr", "1e-4"]),
        ("1-5%1", ["--lr", "2e-4"]),
    ]
    waits = dict(row.split("|") for row in opsctl.queue("%F|%E"))  # by array: a task that starts has an id of its own
    assert sorted(waits) == [str(record["chain"]) for record in new]
    assert f"{new[0]['chain']}_*" in waits[str(new[1]["chain"])]
    assert {first, second}.isdisjoint(int(one) for one in waits)


def test_a_resubmit_whose_one_off_arguments_no_longer_fit_changes_nothing(opsctl: Opsctl) -> None:
    old = opsctl.submit("--", "--global-batch-size", "4")
    write_run(opsctl.folder, nodes=4)  # 8 replicas now
    answer = opsctl("revise", "--resubmit")
    assert answer.code == 2 and "global-batch-size" in answer.err
    assert opsctl.queue("%A") == [str(old)] and len(opsctl.revisions()) == 1


def test_another_users_queued_tasks_are_not_ours_to_replace(opsctl: Opsctl, unix_user: Callable[..., str]) -> None:
    opsctl.submit()
    opsctl.ok("cancel")
    alice = unix_user("alice")
    mark = f"--comment=opsctl run={opsctl.run_id()} submit=0123"
    theirs = opsctl.cluster.sbatch("sleep 600", mark, "--array=1-3%1", "--hold", user=alice)
    write_run(opsctl.folder, nodes=1)
    answer = opsctl("revise", "--resubmit")
    assert answer.code == 1 and alice in answer.err and "only their owner" in answer.err
    assert opsctl.queue("%A") == [str(theirs)] and len(opsctl.revisions()) == 1


def test_cancel_queued_spares_what_runs(opsctl: Opsctl) -> None:
    chain = running_chain(opsctl)
    would = opsctl.ok("cancel", "--queued", "--dry-run")
    assert would == f"{chain}_[2-3%1]" and len(opsctl.queue("%i")) == 2
    assert opsctl.ok("cancel", "--queued") == f"{chain}_[2-3%1]"
    assert opsctl.queue("%i") == [f"{chain}_1"]
    assert opsctl.ok("cancel") == f"{chain}_1"
    wait_until(lambda: opsctl.queue("%i") == [], 20, "the running task to go")
    answer = opsctl("cancel")
    assert answer.code == 0 and answer.out == "" and "nothing of yours" in answer.err
