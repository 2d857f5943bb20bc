"""Slurm's controller away while the desk is at work: nothing lost, doubled, or claimed that is not known."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.printed_json import printed
from tests.tiny_run import write_run

PERIOD_S = 4


@pytest.fixture
def opsctl(local_cluster: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder)
        yield Opsctl(local_cluster, folder)
        local_cluster.cancel_everything()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ended(findings: list[dict[str, Any]]) -> bool:
    return any(line["event"] == "message" and line["message"]["kind"] == "recovery" for line in findings)


def test_while_the_controller_is_away_the_desk_ends_nothing_asks_for_nothing_and_goes_on_afterwards(
    opsctl: Opsctl,
) -> None:
    """Each command of the desk, during several looks and ticks without a controller."""
    chain = opsctl.submit()
    opsctl.cluster.run("scontrol", "hold", str(chain))
    assert opsctl("watch", "all", "--alert").code in (1, 2)
    before = json.loads((opsctl.state / "alerts.json").read_text())["findings"]
    held = [key for key in before if "held" in key]
    assert held
    cron = opsctl.folder / "cron"
    start = opsctl("cron", "start", "--tick", f"{PERIOD_S}s", "--via", "slurm", "--folder", str(cron))
    assert start.code == 0, start.err
    for shipped in cron.glob("cron.*/*.slurm"):
        shipped.unlink()
    ticks = cron / ".opsctl" / "ticks.jsonl"
    wait_until(lambda: any(line["event"] == "done" for line in lines(ticks)), 40, "a tick")
    log = opsctl.state / "alerts.jsonl"
    with opsctl.cluster.killed("slurmctld"):
        gone_at = time.monotonic()
        asked = {
            words: opsctl.start(*words.split())
            for words in (
                "watch all --alert",
                "refill",
                "request cancel-queued --no-wait",
                "request carry-out",
                "cron run refill --folder cron",
                "status --all",
                "on-call",
            )
        }
        answers = {words: (*child.communicate(timeout=60), child.returncode) for words, child in asked.items()}
        for words, (out, err, code) in answers.items():
            assert "Traceback" not in err and not re.search(r"not RUNNING or SCHED|nothing is queued", out + err), words
            assert code in ((0,) if words in ("on-call", "request carry-out") else (1, 2, 3)), (words, out, err, code)
        assert opsctl("watch", "all", "--alert").code in (2, 3)
        wait_until(lambda: time.monotonic() > gone_at + 2.5 * PERIOD_S, 30, "two periods and a half")
    after = json.loads((opsctl.state / "alerts.json").read_text())["findings"]
    assert all(after[key]["since"] == before[key]["since"] for key in held), "a blind look ended what it cannot see"
    assert not ended(lines(log))
    assert len(opsctl.chains()) == 1 and not list((opsctl.state / "requests").glob("*.json"))
    wait_until(lambda: opsctl.cluster.run("scontrol", "ping", check=False).returncode == 0, 30, "the controller")
    assert opsctl.queue("%A")[0] == str(chain) or str(chain) in opsctl.queue("%A")
    done = len(lines(ticks))
    wait_until(lambda: len(lines(ticks)) >= done + 4, 60, "ticks again")
    opsctl("cron", "stop", "--folder", str(cron))
    claimed = [line for line in lines(ticks) if line["event"] == "claimed"]
    covered = [due for one in claimed for due in range(one["first"], one["due"] + 1, PERIOD_S)]
    assert covered == list(range(covered[0], covered[-1] + 1, PERIOD_S))
    opsctl.cluster.run("scontrol", "release", str(chain))
    opsctl("watch", "all", "--alert")
    last = json.loads((opsctl.state / "alerts.json").read_text())["findings"]
    assert all(key not in last or last[key].get("recovered_at") for key in held)
    assert sum(key in line["message"]["keys"] for line in lines(log) if line["event"] == "message" for key in held) == 2


def test_on_call_and_all_runs_of_a_live_queue_name_what_runs_and_what_is_held(opsctl: Opsctl) -> None:
    chain = opsctl.submit()
    mark = f"--comment=opsctl run={opsctl.run_id()} submit=0123"
    job = opsctl.cluster.sbatch("sleep 600", mark, "--nodes=1")
    opsctl.cluster.wait_for_state(job, "RUNNING")
    opsctl.cluster.run("scontrol", "hold", str(chain))
    (row,) = printed("status", opsctl.ok("status", "--all", "--json"))
    assert row["state"] == "running", row
    (over,) = printed("on-call", opsctl.ok("on-call", "--since", "1h", "--json"))
    assert {one["id"].partition("_")[0] for one in over["queue"]} == {str(job), str(chain)}
    assert any(f"submitted chain {chain}" in one["text"] for one in over["happened"])
    assert any("held" in one["text"] for one in over["findings"]), over["findings"]
    text = opsctl.ok("on-call")
    assert re.search(rf"\b{job}\b.*\broot\b", text) and re.search(r"\bheld\b", text)
