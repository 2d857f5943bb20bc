"""The desk's commands on a real disk that is full to the last byte: nothing is lost, doubled or cut."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.alert_log import events
from opsctl.run.state.alerts import Noted, acknowledge, note, open_alerts
from opsctl.run.state.chains import read_cancels, record_cancel
from opsctl.run.state.kill_switch import read_deactivations
from opsctl.run.state.requests import Request, ask, audited, waiting
from tests.tiny_run import write_run
from tests.unit.cli.test_any_state import SLURM, answer, contents

CRON = Noted(key="cron", severity="critical", text="the cron is dead", todo="opsctl cron start")
DISK = Noted(key="disk", severity="warning", text="the disk fills", todo="")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunPaths]:
    """A submitted run, the account's state and the cron folder on a small disk; programs play an idle Slurm."""
    if os.getuid():
        pytest.skip("a small disk of one's own needs root")
    disk, programs = tmp_path / "disk", tmp_path / "bin"
    disk.mkdir()
    programs.mkdir()
    for name, text in SLURM.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    for name in list(os.environ):
        if name.startswith(("SLURM", "OPSCTL")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(disk / "account"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(disk / "config"))
    options = "size=2m,mode=755"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        write_run(disk / "run")
        monkeypatch.chdir(disk / "run")
        assert answer("submit")[0] == 0
        yield RunPaths(disk / "run" / "output")
    finally:
        monkeypatch.chdir("/")
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with pytest.raises(OSError, match="No space"):
                while True:
                    file.write(b"x" * size)
    return filler


def settled(files: dict[Path, bytes | None]) -> dict[Path, bytes | None]:
    """Without what counts by its lock or its mtime only, and what the shared answers and looks make again."""
    return {
        path: data
        for path, data in files.items()
        if data is not None and path.suffix not in (".lock", ".reserve") and path.name not in ("lock", "filler")
    }


COMMANDS = (
    ["watch", "all", "--alert", "--no-log"],
    ["status"],
    ["status", "--all"],
    ["on-call", "--since", "last"],
    ["refill"],
    ["alerts", "ack", "--all", "--why", "mine"],
    ["alerts", "silence", "1:00:00"],
    ["request", "cancel-queued", "--no-wait"],
    ["request", "carry-out"],
    ["metrics", "--output", "metrics.prom"],
    ["cron", "start", "--via", "slurm"],
    ["cron", "add", "--shipped", "refill", "--replace"],
    ["cron", "run", "progress"],
    ["cancel"],
)


def test_on_a_full_disk_no_file_is_cut_and_afterwards_everything_is_written_once(run: RunPaths) -> None:
    disk = run.output.parent.parent
    note(run, [CRON], now())
    record_cancel(run, ["11"], queued_only=True)
    Path("metrics.prom").write_text("# EOF\n")
    ask(run, Request(action="cancel-queued", why="before", owner="root"))
    assert answer("request", "carry-out", "--dry-run")[:2] == answer("request", "list")[:2] and waiting(run)
    assert answer("cron", "start", "--via", "slurm", "--tick", "1:00:00")[0] == 0
    answer("watch", "all", "--no-log")
    before = settled(contents(disk))
    filler = fill(disk)
    for words in COMMANDS:
        code, out, err = answer(*words)
        what = f"{' '.join(words)}: {code} {out} {err}"
        assert code in (0, 1, 2, 3) and "Traceback" not in err, what
        assert len(err.strip().splitlines()) <= 5, what
    after = settled(contents(disk))
    for path, data in before.items():
        assert path in after or path.parent.name in ("requests",), f"{path} is lost"
        kept = after.get(path)
        assert kept is None or path.parent.name == "taken" or kept.startswith(data or b"") or _is_whole(path, kept), (
            path
        )
    for path in after:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        assert not path.name.endswith(".tmp"), path
    filler.unlink()
    answer("request", "carry-out")
    # Each request is answered once, also one that was carried out before the disk was full and could not be recorded.
    assert {one.outcome for one in audited(run)} <= {"done", "refused", "failed", "too-late"}
    assert waiting(run) == [] and len({one.id for one in audited(run)}) == len(audited(run)) >= 1
    note(run, [CRON, DISK], now())
    acknowledge(run, ["disk"], "mine", now())
    assert set(open_alerts(run)) >= {"cron", "disk"}
    made = [one.message for one in events(run) if one.message is not None]
    # The full disk took the check's messages too: that the cron lives again, and that the disk is full.
    assert [one.kind for one in made if "cron" in one.keys] == ["handed-over", "recovery", "handed-over"]
    assert sum("disk" in one.keys for one in made) == 1
    assert sum(any(key.startswith("filesystem:") for key in one.keys) for one in made) == 1
    assert len({one.id for one in made}) == len(made)
    assert answer("metrics", "--output", "metrics.prom")[0] == 0
    assert Path("metrics.prom").read_text().endswith("# EOF\n") and "opsctl" in Path("metrics.prom").read_text()
    assert answer("cancel")[0] == 0 and read_cancels(run)[0].jobs == ("11",)
    answer("kill-switch", "trigger", "--no-wait")
    answer("kill-switch", "deactivate")
    assert len(read_deactivations(run)) == 1


def _is_whole(path: Path, data: bytes) -> bool:
    """Replaced as a whole, however short of room: a JSON file that reads, or an OpenMetrics text with its end."""
    if path.suffix == ".json":
        return bool(json.loads(data))
    return data.endswith(b"# EOF\n") if path.suffix == ".prom" else data.endswith(b"\n")
