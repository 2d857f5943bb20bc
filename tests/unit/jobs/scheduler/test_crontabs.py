"""Crontabs: the text of one, and a stand-in for the program `crontab`, which few test machines have."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.jobs.scheduler import chain, crontabs
from opsctl.jobs.scheduler.context import Cron
from opsctl.jobs.scheduler.crontabs import schedule, with_block
from opsctl.run.state.scheduler import read_chain
from opsctl.slurm.cluster import Cluster
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_cron

#: Keeps its text in a file, as the real one does; fails like it without one.
STAND_IN = """#!/bin/bash
file=$(dirname "$0")/table
case $1 in
-l) cat "$file" 2> /dev/null || { echo "no crontab for $USER" >&2; exit 1; } ;;
-) cat > "$file" ;;
esac
"""
MINE = "MAILTO=me\n# my own\n0 3 * * * backup --all\n"


@pytest.fixture
def cron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cron:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "crontab").write_text(STAND_IN)
    (tmp_path / "bin" / "crontab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return a_cron(tmp_path / "a folder", SlurmInMemory())


def table(tmp_path: Path) -> str:
    return (tmp_path / "bin" / "table").read_text()


def test_our_block_is_replaced_and_nothing_else_is_touched() -> None:
    once = with_block(MINE, "opsctl cron 1", ["line"])
    assert once == MINE + "# opsctl cron 1 begin\nline\n# opsctl cron 1 end\n"
    assert with_block(once + "last\n", "opsctl cron 1", ["other"]).count("opsctl cron 1 begin") == 1
    assert with_block(once, "opsctl cron 1", []) == MINE
    assert with_block(once, "opsctl cron 2", []) == once
    with pytest.raises(OpsctlError, match=r"'# opsctl cron 1 begin' .*'# opsctl cron 1 end'"):
        with_block("# opsctl cron 1 begin\nbackup\n", "opsctl cron 1", [])


@pytest.mark.parametrize(
    ("period_s", "offset_s", "words"),
    [
        (3600, 0, "0 * * * *"),
        (3600, 7200, "0 * * * *"),
        (3600, 19_800, "30 * * * *"),  # +05:30
        (3600, -12_600, "30 * * * *"),  # -03:30
        (3600, 20_700, "45 * * * *"),  # +05:45
        (1200, 0, "0,20,40 * * * *"),
        (60, 0, "* * * * *"),
    ],
)
def test_the_schedule_meets_the_grid_in_every_zone(period_s: int, offset_s: int, words: str) -> None:
    assert schedule(period_s, offset_s) == words


@pytest.mark.parametrize("period_s", [20, 90, 420])
def test_a_period_that_no_crontab_knows_is_refused_by_name(period_s: int) -> None:
    with pytest.raises(UsageError, match="--via slurm"):
        schedule(period_s, 0)


def test_a_crontab_carries_it_and_is_as_before_when_it_is_stopped(cron: Cron, tmp_path: Path) -> None:
    (tmp_path / "bin" / "table").write_text(MINE)
    chain.start(cron, "crontab", 3600, False, time.time)
    found = read_chain(cron.paths)
    assert found is not None and found.via == "crontab"
    line = table(tmp_path).removeprefix(MINE).splitlines()[1]
    assert line.split()[1:5] == ["*"] * 4 and f"--token {found.token} " in line and "'" in line
    chain.start(cron, "crontab", 3600, True, time.time)
    assert table(tmp_path).count("opsctl cron tick") == 1
    chain.stop(cron)
    assert table(tmp_path) == MINE


def test_a_takeover_from_a_crontab_to_the_queue_takes_the_line_out(cron: Cron, tmp_path: Path) -> None:
    chain.start(cron, "crontab", 3600, False, time.time)
    chain.start(cron, "slurm", 3600, True, time.time)
    assert table(tmp_path) == ""


def test_where_there_is_no_crontab_or_it_does_not_answer_that_is_said(
    cron: Cron, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / "crontab").write_text("#!/bin/bash\nexec sleep 60\n")
    monkeypatch.setattr(crontabs, "_ANSWER_S", 0.2)
    with pytest.raises(OpsctlError, match=r"crontab .*0 s"):
        chain.start(cron, "crontab", 3600, False, time.time)
    (tmp_path / "bin" / "crontab").write_text("#!/bin/bash\necho you are not allowed >&2; exit 1\n")
    with pytest.raises(OpsctlError, match=r"crontab -l: you are not allowed"):
        chain.start(cron, "crontab", 3600, False, time.time)
    (tmp_path / "bin" / "crontab").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # this machine may have a real one
    with pytest.raises(OpsctlError, match=r"--via crontab: .*--via slurm"):
        chain.start(cron, "crontab", 3600, False, time.time)
    assert read_chain(cron.paths) is None


def test_without_scrontab_slurms_own_queue_carries_it(
    cron: Cron, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert crontabs.best_via(cron, 3600) == "slurm"
    with pytest.raises(OpsctlError, match=r"--via scrontab: .*PATH.*--via slurm"):
        chain.start(cron, "scrontab", 3600, False, time.time)
    assert cron.cluster == Cluster()
