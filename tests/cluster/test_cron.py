"""The pseudo-cron on a real Slurm, with an hour of a few seconds: what befalls a chain of ticks, and who carries it."""

from __future__ import annotations

import json
import os
import pwd
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opsctl.jobs.runner.cron_watch import CronWatch
from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.spec import plain
from opsctl.run.config.paths import RunPaths
from tests.cluster.commands import Answer, Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.test_local_cluster_installs import PREFIX
from tests.cluster.trainings import Training

PERIOD_S = 2
GROUP = f"occron{os.getpid()}"


@dataclass(frozen=True)
class Desk:
    """A cron folder on one cluster, and people at it."""

    cluster: RunningCluster
    base: Path

    @property
    def folder(self) -> Path:
        return self.base / "cron"

    def environment(self, user: str) -> dict[str, str]:
        own = {
            "OPSCTL_CLUSTER": str(self.cluster.folder),
            "XDG_CONFIG_HOME": str(self.base / "config"),
            "XDG_STATE_HOME": str(self.base / f"state-{user}"),
            "HOME": pwd.getpwnam(user).pw_dir,
            "USER": user,
        }
        return {**{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OPSCTL"))}, **own}

    def profile(self, **keys: str) -> None:
        place = self.base / "config" / "opsctl" / "profile.toml"
        place.parent.mkdir(parents=True, exist_ok=True)
        lines = [f'{key} = "{value}"' for key, value in {"folder": str(self.folder), "time": "2", **keys}.items()]
        place.write_text("\n".join(["[cron]", *lines]) + "\n")

    def __call__(self, *words: str, user: str = "root") -> Answer:
        start = [] if user == "root" else ["runuser", "-u", user, "--"]
        done = subprocess.run(
            [*start, sys.executable, "-P", "-m", "opsctl", "cron", *words],
            env=self.environment(user),
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, user: str = "root") -> Answer:
        answer = self(*words, user=user)
        assert answer.code == 0, answer.err
        return answer

    def add(self, name: str, body: str, *options: str) -> None:
        script = self.base / f"{name}.slurm"
        script.write_text(f"#!/bin/bash\n#SBATCH --time=1\n{body}\n")
        self.ok("add", str(script), *options)

    def clear_jobs(self) -> None:
        for path in self.folder.glob("cron.*/*.slurm"):
            path.unlink()

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / ".opsctl" / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ticks(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines("ticks.jsonl") if line["event"] == event]

    def covered(self, period_s: int) -> list[int]:
        """Every due time that a claim covers, as often as one does."""
        return [due for one in self.ticks("claimed") for due in range(one["first"], one["due"] + 1, period_s)]

    def wait_for_ticks(self, number: int, timeout_s: float = 40) -> None:
        """Wait until so many more ticks have been done."""
        wanted = len(self.ticks("done")) + number
        wait_until(lambda: len(self.ticks("done")) >= wanted, timeout_s, f"{number} more ticks")

    def queued(self, *states: str) -> list[tuple[str, str, str]]:
        """(id, comment, nodes) of the ticks in the queue."""
        rows = self.cluster.run("squeue", "-h", "-n", "opsctl-cron", "-t", ",".join(states), "-o", "%i|%k|%N").stdout
        return sorted(
            ((job, comment, nodes) for job, comment, nodes in (row.split("|") for row in rows.splitlines())),
            key=lambda row: row[1],
        )

    def running(self) -> tuple[str, str, str]:
        """A tick that is at work just now."""
        found = wait_until(lambda: self.queued("R"), 20, "a tick that runs")
        assert isinstance(found, list)
        return found[0]  # type: ignore[no-any-return]


@pytest.fixture
def desk(local_cluster: RunningCluster) -> Iterator[Desk]:
    with open_folder() as base:
        desk = Desk(local_cluster, base)
        desk.profile()
        yield desk
        desk("stop")
        desk.cluster.cancel_everything()


def each_once(desk: Desk, period_s: int = PERIOD_S) -> None:
    """No due time is lost, doubled or off the grid, from the first to the last that was claimed."""
    covered = desk.covered(period_s)
    assert covered == list(range(covered[0], covered[-1] + 1, period_s))
    assert all(due % period_s == 0 for due in covered)


def test_whatever_befalls_its_ticks_each_due_time_is_done_once(desk: Desk) -> None:
    desk.ok("start", "--tick", f"{PERIOD_S}s", "--via", "slurm")
    desk.clear_jobs()
    desk.add("ok", "echo hello from $OPSCTL_CRON_JOB")
    desk.add("fails", "exit 3")
    desk.add("slow", f"sleep {2.5 * PERIOD_S}")
    (desk.folder / "cron.hourly" / "gone.slurm").symlink_to("/nowhere")
    (desk.folder / "cron.hourly" / "bad\x1b[31mname;rm.slurm").write_text("#!/bin/bash\n")
    (desk.folder / "cron.hourly" / "gpu.slurm").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\n")
    cluster = desk.cluster
    desk.wait_for_ticks(3)
    cluster.run("scancel", desk.queued("PD")[0][0])
    desk.wait_for_ticks(2)
    cluster.run("scontrol", "hold", desk.queued("PD")[0][0])
    desk.wait_for_ticks(2)
    partition = cluster.run("sinfo", "-h", "-o", "%R").stdout.split()[0]
    cluster.run("scontrol", "update", f"PartitionName={partition}", "State=DOWN")
    last = desk.ticks("claimed")[-1]["due"]
    wait_until(lambda: time.time() > last + 3.5 * PERIOD_S, 30, "some periods")
    cluster.run("scontrol", "update", f"PartitionName={partition}", "State=UP")
    desk.wait_for_ticks(2)
    with cluster.killed("slurmctld"):
        time.sleep(PERIOD_S)
    desk.wait_for_ticks(2)
    job, *_ = desk.running()
    cluster.run("scancel", "--full", "--signal=KILL", job, check=False)
    desk.wait_for_ticks(2)
    _, _, node = desk.running()
    cluster.kill_node(node)
    cluster.start(f"slurmd-{node}")
    desk.wait_for_ticks(2)
    busy = [cluster.sbatch("sleep 60", "--exclusive", "-N1") for _ in range(4)]
    last = desk.ticks("claimed")[-1]["due"]
    wait_until(lambda: time.time() > last + 3.5 * PERIOD_S, 30, "some periods")
    cluster.run("scancel", *map(str, busy))
    desk.wait_for_ticks(2)
    status = json.loads(desk("status", "--json", "-n", "200").out)["cron"]
    desk.ok("stop")
    each_once(desk)
    assert [tick["state"] for tick in status["ticks"]].count("merged") >= 2
    runs = {(run["job"], run["state"]) for run in status["runs"]}
    assert ("hourly/ok", "done") in runs and ("hourly/fails", "failed") in runs
    jobs = {job["name"]: job for job in status["jobs"]}
    assert jobs["hourly/fails"]["failures"] > 3 and jobs["hourly/ok"]["failures"] == 0
    assert "link" in jobs["hourly/gone"]["last"]["detail"]
    assert "GPU" in jobs["hourly/gpu"]["last"]["detail"]
    assert any("rename it" in (job["last"] or {}).get("detail", "") for job in status["jobs"])
    assert "hello from hourly/ok" in "".join(path.read_text() for path in (desk.folder / "logs").glob("hourly-ok.*"))
    open_at_once(desk)


def open_at_once(desk: Desk) -> None:
    """No job was started while a run of it was there, and every run that began ended at most once."""
    there: dict[str, str] = {}
    for line in desk.lines("job-runs.jsonl"):
        if line["event"] == "asked":
            assert there.get(line["job"]) is None, line
            there[line["job"]] = line["run"]
        if line["event"] == "ended" and there.get(line["job"]) == line["run"]:
            there[line["job"]] = ""
            del there[line["job"]]
    begun = Counter(line["run"] for line in desk.lines("job-runs.jsonl") if line["event"] == "began")
    assert set(begun.values()) == {1}


@pytest.fixture
def people(unix_user: Callable[..., str]) -> tuple[str, str]:
    return unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP])


def test_two_start_at_once_one_carries_it_and_another_takes_it_over_and_stops_it(
    desk: Desk, people: tuple[str, str]
) -> None:
    ann, ben = people
    desk.profile(group=GROUP)
    tried = desk("status", user=ann)
    if "Permission" in tried.err or "No module" in tried.err:
        pytest.skip(f"{ann} may not read this Python or this checkout")
    with ThreadPoolExecutor(2) as pool:
        begun = list(
            pool.map(lambda user: desk("start", "--tick", f"{PERIOD_S}s", "--via", "slurm", user=user), people)
        )
    assert [answer.code for answer in begun] == [0, 0], begun
    carriers = {json.loads(desk("status", "--json", user=ann).out)["cron"]["carried_by"]}
    (carrier,) = carriers
    assert sorted("cron started" in answer.err for answer in begun) == [False, True]
    assert all(f"carried by {carrier}" in answer.err for answer in begun)
    desk.clear_jobs()
    other = ben if carrier == ann else ann
    script = desk.base / "who.slurm"
    script.write_text("#!/bin/bash\nid -un\n")
    desk.ok("add", str(script), user=ann)
    desk.wait_for_ticks(2)
    desk.ok("start", "--take-over", user=other)
    desk.wait_for_ticks(3)
    each_once(desk)
    assert {one["by"].partition("@")[0] for one in desk.ticks("claimed")[-2:]} == {other}
    wait_until(
        lambda: {path.read_text() for path in (desk.folder / "logs").glob("*who*")} >= {f"{ann}\n", f"{ben}\n"},
        20,
        "a run of each of the two",
    )
    owners = set(desk.cluster.run("squeue", "-h", "-n", "opsctl-cron", "-o", "%u").stdout.split())
    assert owners <= {other, carrier}
    desk.ok("stop", user=carrier)
    wait_until(lambda: not desk.queued("PD", "R"), 20, "all ticks to leave")
    assert json.loads(desk("status", "--json", user=ann).out)["cron"]["state"] == "stopped"


def test_a_training_says_that_the_chain_has_died_and_starts_it_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    period_s = 8  # a tick may be late by some of it on a busy machine
    desk.ok("start", "--tick", f"{period_s}s", "--via", "slurm")
    desk.clear_jobs()
    for name, value in desk.environment("root").items():
        monkeypatch.setenv(name, value)
    output = desk.base / "output"
    (output / ".opsctl").mkdir(parents=True, mode=0o700)
    watch = CronWatch(RunPaths(output), desk.cluster.cluster, least_s=0.1)
    said: list[str] = []

    def heard(words: str) -> bool:
        said.extend(watch.news())
        return any(words in line for line in said)

    watch.start()
    try:
        desk.wait_for_ticks(1)
        assert not heard("ALERT"), said
        desk.cluster.run("scancel", "--name=opsctl-cron")
        wait_until(lambda: heard("***ALERT: the cron has not ticked"), 60, "the alert")
        wait_until(lambda: heard("started the cron again, root via slurm"), 60, "a new chain")
        desk.wait_for_ticks(1)
        wait_until(lambda: heard("the cron ticks again"), 60, "the all-clear")
    finally:
        watch.stop()
    each_once(desk, period_s)
    assert sum("ALERT" in line for line in said) == 1
    kinds = [json.loads(line) for line in (output / ".opsctl" / "alerts.jsonl").read_text().splitlines()]
    assert any("has not ticked" in json.dumps(line) for line in kinds)


@pytest.mark.nightly
def test_a_real_training_says_in_its_log_that_the_chain_has_died_and_starts_it_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ok("start", "--tick", "5s", "--via", "slurm")
    desk.clear_jobs()
    monkeypatch.setenv("XDG_CONFIG_HOME", desk.environment("root")["XDG_CONFIG_HOME"])
    with open_folder() as folder:
        training = Training(Opsctl(desk.cluster, folder))
        training.write()
        training.submit("1")
        training.wait_for_iteration(2)
        assert "ALERT" not in training.log()
        desk.cluster.run("scancel", "--name=opsctl-cron")
        training.wait_for_log("***ALERT: the cron has not ticked")
        training.wait_for_log("started the cron again, root via slurm")
        training.wait_for_log("the cron ticks again")
        done = training.iterations()[-1]
        training.wait_for_iteration(done + 2)  # and none of it held the training up
    each_once(desk, 5)


def test_a_job_that_slurm_kills_is_closed_by_the_next_tick_and_one_that_a_person_asks_for_runs_at_once(
    desk: Desk,
) -> None:
    desk.ok("start", "--tick", f"{PERIOD_S}s", "--via", "slurm")
    desk.ok("stop")
    desk.clear_jobs()
    desk.add("long", "sleep 50")
    job = int(desk.ok("run", "long").out)  # while there are no ticks: one of them might start it first
    desk.cluster.wait_for_state(job, "RUNNING")
    wait_until(lambda: any(line["event"] == "began" for line in desk.lines("job-runs.jsonl")), 20, "its program")
    again = desk("run", "long")
    assert again.code == 1 and str(job) in again.err
    desk.ok("start", "--tick", f"{PERIOD_S}s", "--via", "slurm")
    desk.clear_jobs()
    desk.cluster.run("scancel", "--full", "--signal=KILL", str(job))

    def ends() -> list[dict[str, Any]]:
        return [
            line for line in desk.lines("job-runs.jsonl") if (line["event"], line["job"]) == ("ended", "hourly/long")
        ]

    ended = wait_until(ends, 60, "the run's end")
    assert isinstance(ended, list) and len(ended) == 1
    assert ended[0]["state"] in ("failed", "cancelled") and ended[0]["exit_code"] != 0, ended


@pytest.mark.nightly
def test_a_tick_with_nothing_to_do_costs_less_than_a_second_of_cpu(desk: Desk) -> None:
    desk.ok("start", "--tick", "1:00:00", "--via", "slurm")
    token = json.loads((desk.folder / ".opsctl" / "chain.json").read_text())["token"]
    words = ["tick", "--folder", str(desk.folder), "--token", token, "--period", "3600"]
    desk.ok(*words)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    desk.ok(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_with_a_full_disk_nothing_is_lost_and_nothing_claimed(desk: Desk) -> None:
    if os.getuid():
        pytest.skip("a small disk of one's own needs root")
    small = desk.base / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        small.chmod(0o755)
        desk.profile(folder=str(small / "cron"))
        there = Desk(desk.cluster, desk.base)
        object.__setattr__(there, "base", small)
        desk.ok("start", "--tick", f"{PERIOD_S}s", "--via", "slurm")
        there.clear_jobs()
        wait_until(lambda: len(there.ticks("done")) >= 2, 30, "two ticks")
        with (small / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 4096)
        full_at = len(there.ticks("claimed"))
        time.sleep(2 * PERIOD_S)
        after = len(there.ticks("claimed"))
        (small / "filler").unlink()
        wait_until(lambda: len(there.ticks("claimed")) >= after + 2, 30, "ticks again")
        desk.ok("stop")
        each_once(there)
        assert after - full_at <= 2  # what fits into the file's last page is no full disk yet
    finally:
        desk("stop")
        desk.cluster.cancel_everything()
        subprocess.run(["umount", "-l", str(small)], check=False, timeout=20)


@pytest.mark.nightly
@pytest.mark.skipif(not (PREFIX / "bin" / "scrontab").exists(), reason=f"no Slurm with a scrontab under {PREFIX}")
def test_where_slurm_enables_scrontab_that_carries_the_chain_and_its_block_goes_with_it(cluster_folder: Path) -> None:
    up = lifecycle.up(plain("scron", nodes=1, slurm_prefix=str(PREFIX)), cluster_folder)
    environment = up.cluster.environment()
    conf = Path(environment["SLURM_CONF"])

    def slurm(*words: str) -> str:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=20)
        return done.stdout + done.stderr

    with open_folder() as base:
        desk = Desk(cast(RunningCluster, SimpleNamespace(folder=cluster_folder)), base)
        desk.profile()
        refused = desk("start", "--via", "scrontab", "--tick", "60s")
        assert (refused.code, "ScronParameters" in refused.err) == (1, True)
        conf.write_text(f"{conf.read_text()}ScronParameters=enable\n")
        slurm("scontrol", "reconfigure")
        wait_until(lambda: "enable" in slurm("scontrol", "show", "config").partition("ScronParameters")[2][:60], 20)
        desk.ok("start", "--tick", "60s")
        assert json.loads(desk.ok("status", "--json").out)["cron"]["via"] == "scrontab"
        assert "opsctl" in slurm("scrontab", "-l")
        desk.wait_for_ticks(1, 80)
        desk.ok("stop")
        assert "opsctl" not in slurm("scrontab", "-l")
        each_once(desk, 60)
