"""Test what a submit leaves in Slurm and on disk, and what it refuses before asking."""

import grp
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.printed_json import printed
from tests.tiny_run import write_checkpoint, write_run


@pytest.fixture
def opsctl(local_cluster: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder)
        yield Opsctl(local_cluster, folder)


def test_a_chain_is_in_slurm_as_the_run_file_asks_and_on_record(opsctl: Opsctl) -> None:
    answer = opsctl("submit", "--array", "1-3%1", "--begin", "now+1day")
    assert answer.code == 0
    chain = int(answer.out)
    assert f"chain {chain} of 3 tasks (1-3%1)" in answer.err and "opsctl status" in answer.err
    (row,) = opsctl.queue("%i|%j|%D|%l|%b")
    assert row.replace("gres/gpu", "gres:gpu") == f"{chain}_[1-3%1]|tiny|2|10:00|gres:gpu:2"
    (record,) = opsctl.chains()
    (revision,) = opsctl.revisions()
    assert (record["chain"], record["array"], record["revision"]) == (chain, "1-3%1", revision)
    comment = opsctl.queue("%k")[0]
    assert comment == f"opsctl run={opsctl.run_id()} submit={record['token']}"
    assert json.loads((opsctl.state / "cluster.json").read_text())["slurm_conf"] == str(
        opsctl.cluster.cluster.slurm_conf
    )
    assert (opsctl.folder / "output" / "logs" / "slurm").is_dir()
    assert not (opsctl.state / "submitting.json").exists()


def test_a_run_remembers_its_cluster(opsctl: Opsctl) -> None:
    chain = opsctl.submit()
    environment = {k: v for k, v in opsctl.environment().items() if k != "OPSCTL_CLUSTER"}
    words = [sys.executable, "-m", "opsctl", "cancel"]
    done = subprocess.run(words, cwd=opsctl.folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{chain}_[1-3%1]\n", done.stderr


def test_json_says_what_was_submitted(opsctl: Opsctl) -> None:
    dry = printed("submit", opsctl.ok("submit", "--dry-run", "--json"))
    assert dry["script"].startswith("#!/bin/bash\n")
    submitted = printed("submit", opsctl.ok("submit", "--json", "-q", "--begin", "now+1day", "--", "--lr", "2e-3"))
    assert submitted["chain"] == opsctl.chains()[0]["chain"]
    assert submitted["arguments"] == ["--lr", "2e-3"]
    cancelled = printed("cancel", opsctl.ok("cancel", "--json"))
    assert (len(cancelled["ids"]), cancelled["left"], cancelled["dry_run"]) == (1, [], False)


def test_what_a_chain_is_given_reaches_slurm(opsctl: Opsctl) -> None:
    other = opsctl.cluster.sbatch("sleep 600")
    chain = opsctl.submit(
        "--after", str(other), "--exclude", "node3", "--nodes", "1", "--", "--lr", ["it", "is", "2e-3"][-1]
    )
    shown = opsctl.cluster.run("scontrol", "show", "job", str(chain)).stdout
    assert f"Dependency=afterany:{other}" in shown
    assert "ExcNodeList=node3" in shown and "NumNodes=1" in shown
    script = opsctl.cluster.run("scontrol", "write", "batch_script", str(chain), "-").stdout
    assert "-- --lr 2e-3\n" in script
    (record,) = opsctl.chains()
    assert (record["after"], record["exclude"], record["nodes"]) == ([str(other)], "node3", 1)


def test_after_auto_waits_for_the_whole_array(opsctl: Opsctl) -> None:
    first = opsctl.submit()
    second = opsctl.submit("--after", "auto")
    third = opsctl.submit("--after", str(second))
    waiting = dict(row.split("|") for row in opsctl.queue("%A|%E"))
    assert waiting[str(second)].startswith(f"afterany:{first}_*")
    assert waiting[str(third)].startswith(f"afterany:{second}_*")


def test_waiting_for_a_job_that_is_not_there_is_warned_of(opsctl: Opsctl) -> None:
    answer = opsctl("submit", "--after", "999999", "--begin", "now+1day")
    assert answer.code == 0 and "job 999999 " in answer.err


def test_a_dry_run_prints_the_script_and_changes_nothing(opsctl: Opsctl) -> None:
    text = opsctl.ok("submit", "--dry-run", "--array", "1-2%1")
    assert "#SBATCH --array=1-2%1" in text and "opsctl job run" in text
    assert opsctl.queue("%i") == []
    assert not (opsctl.folder / "output").exists()


def test_render_prints_what_submit_hands_over(opsctl: Opsctl) -> None:
    rendered = opsctl.ok("render")
    assert not (opsctl.folder / "output").exists()
    chain = opsctl.submit()
    script = opsctl.cluster.run("scontrol", "write", "batch_script", str(chain), "-").stdout

    def comparable(text: str) -> str:
        for pattern in (r"--begin=\S+\n#SBATCH ", r"--comment=.*", r"--submitted-at \S+"):
            text = re.sub(pattern, "", text)
        return text.strip()

    batch = rendered.split("==> run.json <==")[0].removeprefix("==> batch.sh <==\n")
    assert comparable(batch) == comparable(script)


@pytest.mark.parametrize(
    ("asked", "words", "way_out"),
    [
        ('partition = "nowhere"', [], r"[Ii]nvalid partition.*\[slurm\] partition"),
        ('constraint = "antimatter"', [], r"[Ii]nvalid feature.*\[slurm\] constraint"),
        ('gpu_type = "h9000"', [], r"node configuration.*\[slurm\] nodes, gpus_per_node and gpu_type"),
        ('reservation = "none"', [], r"reservation.*\[slurm\] reservation"),
        ("", ["--begin", "yesterday-ish"], r"time.*--begin"),
    ],
)
def test_slurms_refusal_is_one_line_and_leaves_nothing_on_record(
    opsctl: Opsctl, asked: str, words: list[str], way_out: str
) -> None:
    write_run(opsctl.folder, slurm=asked)
    answer = opsctl("submit", *words)
    assert answer.code == 1 and answer.out == ""
    assert re.search(way_out, answer.err) and "nothing was submitted" in answer.err
    assert len(answer.err.strip().splitlines()) == 1
    assert opsctl.chains() == [] and opsctl.revisions() == []
    assert not (opsctl.state / "run-id").exists() and not (opsctl.state / "cluster.json").exists()
    assert not (opsctl.state / "submitting.json").exists()


def test_a_refusal_does_not_touch_what_is_queued(opsctl: Opsctl) -> None:
    chain = opsctl.submit()
    before = opsctl.revisions()
    write_run(opsctl.folder, lr="5e-4")
    answer = opsctl("submit", "--after", "auto", "--begin", "never")
    assert answer.code == 1
    assert opsctl.revisions() == before
    assert [record["chain"] for record in opsctl.chains()] == [chain]


def test_a_disk_that_fills_at_any_moment_is_one_line_and_nothing_half_written(local_cluster: RunningCluster) -> None:
    with open_folder() as folder, small_disk(folder / "output", kib=384):
        write_run(folder)
        opsctl = Opsctl(local_cluster, folder)
        room = folder / "output" / "full"
        with pytest.raises(OSError, match="No space"), room.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        refusals = 0
        while (answer := opsctl("submit", "--begin", "now+1day")).code:
            refusals += 1
            assert answer.code == 1 and len(answer.err.strip().splitlines()) == 1, answer.err
            assert "no space left" in answer.err
            assert opsctl.queue("%i") == [] and opsctl.chains() == [] and opsctl.revisions() == []
            os.truncate(room, room.stat().st_size - 16384)
        assert refusals > 3
        assert opsctl.queue("%A") == [answer.out.strip()]
        assert [record["chain"] for record in opsctl.chains()] == [int(answer.out)]


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[None]:
    """A file system of its own at `folder`; skips where none may be mounted."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True, timeout=10).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


def test_a_triggered_kill_switch_refuses_a_submit(opsctl: Opsctl) -> None:
    opsctl.ok("cancel")
    (opsctl.folder / "output").mkdir()
    (opsctl.folder / "output" / "kill-switch").touch()
    answer = opsctl("submit")
    assert answer.code == 1 and "kill switch" in answer.err and "opsctl kill-switch deactivate" in answer.err
    assert opsctl.queue("%i") == [] and opsctl.revisions() == []
    (opsctl.folder / "output" / "kill-switch").unlink()
    opsctl.submit()


def test_a_finished_training_refuses_a_submit_until_it_has_a_new_goal(opsctl: Opsctl) -> None:
    write_checkpoint(opsctl.folder, 500, 4000)
    answer = opsctl("submit")
    assert answer.code == 1 and "tiny is finished" in answer.err and "train_samples" in answer.err
    write_run(opsctl.folder, train_samples=8000)
    answer = opsctl("submit")
    assert answer.code == 2 and "4000 -> 8000" in answer.err
    opsctl.submit("--", "--override-lr-scheduler")


def test_a_submit_names_a_word_that_belongs_to_nothing(opsctl: Opsctl) -> None:
    answer = opsctl("submit", "--", "--no-such-option", "1")
    assert answer.code == 2 and "--no-such-option" in answer.err
    assert opsctl("submit", "--arry", "1").code == 2


def test_a_hostile_folder_is_quoted_all_the_way(local_cluster: RunningCluster) -> None:
    with open_folder() as base:
        folder = base / 'it\'s "a" $(touch pwned) `touch pwned` 50%x; #1 & é'
        write_run(folder)
        opsctl = Opsctl(local_cluster, folder)
        chain = opsctl.submit("--begin", "now+1day")
        (folder / "output" / "kill-switch").touch()
        opsctl.cluster.run("scontrol", "update", f"jobid={chain}", "starttime=now")
        output = folder / "output" / "logs" / "slurm" / f"tiny-{chain}_3.out"
        wait_until(lambda: output.exists() and opsctl.queue("%i") == [], 40, "three tasks to leave")
        for task in (1, 2, 3):
            assert "Detected kill switch" in output.with_name(f"tiny-{chain}_{task}.out").read_text()
        assert list(base.rglob("pwned")) == []


@pytest.mark.parametrize("name", ["a b", "-x", "$(x)", "a'b", 'a\\"b', "a/b", "a\\nb", ""])
def test_a_hostile_run_name_is_refused(opsctl: Opsctl, name: str) -> None:
    path = write_run(opsctl.folder)
    path.write_text(path.read_text().replace('name = "tiny"', f'name = "{name}"'))
    answer = opsctl("submit")
    assert answer.code == 2 and "[run] name" in answer.err
    assert not (opsctl.folder / "output").exists()


def test_files_are_the_groups_that_the_run_file_names_and_else_the_owners_alone(opsctl: Opsctl) -> None:
    opsctl.submit()
    for path in [opsctl.folder / "output", *(opsctl.folder / "output").rglob("*")]:
        assert not Path(path).stat().st_mode & 0o077, path
    write_run(opsctl.folder, group=grp.getgrgid(os.getegid()).gr_name)
    opsctl.ok("revise")
    for path in [opsctl.folder / "output", *(opsctl.folder / "output").rglob("*")]:
        mode = Path(path).stat().st_mode
        assert mode & 0o007 == 0, path
        assert mode & 0o040, path
        assert not path.is_dir() or mode & 0o2000, path


def test_a_run_whose_file_is_being_edited_can_be_cancelled(opsctl: Opsctl) -> None:
    chain = opsctl.submit()
    run_file = opsctl.folder / "run.toml"
    run_file.write_text(run_file.read_text() + "\n[retention]\nkeep_last = 2\n")
    assert opsctl("plan").code == 2
    assert opsctl.ok("cancel") == f"{chain}_[1-3%1]"
    assert opsctl.queue("%A") == []
