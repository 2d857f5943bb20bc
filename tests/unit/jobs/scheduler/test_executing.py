from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.scheduler.context import Cron, job_files
from opsctl.jobs.scheduler.executing import END_BYTES, KEPT_OUTPUTS, MOST_BYTES, execute
from opsctl.jobs.scheduler.job_runs import digest_of, start_job
from opsctl.run.state.scheduler import CronRun, read_runs
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_cron, add


@pytest.fixture
def cron(tmp_path: Path) -> Cron:
    return a_cron(tmp_path / "cron", SlurmInMemory(), time="10:00")


def ran(cron: Cron, body: str, head: str = "") -> tuple[int, CronRun, str]:
    """(exit code, run, output) of a job with this body."""
    add(cron, "hourly/one", body, head)
    started = start_job(cron, job_files(cron.paths, False)[0], "abc", 3600)
    assert started.job_id, started
    text = cron.paths.text(started.run).read_text()
    code = execute(cron, started.run, digest_of(text), started.job_id, "node1")
    run = next(one for one in read_runs(cron.paths) if one.run == started.run)
    return code, run, (cron.paths.folder / run.output).read_text()


def test_its_exit_code_duration_and_output_are_on_record(cron: Cron) -> None:
    code, run, output = ran(cron, "echo out; echo err >&2; exit 3")
    assert (code, run.state, run.exit_code, output) == (3, "failed", 3, "out\nerr\n")
    assert run.duration_s is not None and run.job_id and run.host == "node1"
    assert not cron.paths.text(run.run).exists()


def test_it_finds_opsctl_and_knows_what_it_is(cron: Cron) -> None:
    _, _, output = ran(cron, 'command -v python3; echo "$OPSCTL_CRON_JOB $OPSCTL_CRON_FOLDER"; cat; basename "$0"')
    python, names, own = output.splitlines()
    assert Path(python).parent == Path(sys.executable).parent
    assert (names, own) == (f"hourly/one {cron.paths.folder}", "one.slurm")


def test_opsctl_in_it_looks_at_the_scheduler_that_started_it(cron: Cron) -> None:
    _, _, output = ran(cron, "opsctl cron status --json")
    assert [job["name"] for job in json.loads(output)["cron"]["jobs"]] == ["hourly/one"]


def test_the_first_line_says_what_runs_it(cron: Cron) -> None:
    (cron.paths.hourly / "one.slurm").write_text("#!/usr/bin/env python3\nprint(6 * 7)\n")
    started = start_job(cron, job_files(cron.paths, False)[0], "abc", 3600)
    execute(cron, started.run, digest_of(cron.paths.text(started.run).read_text()), 1, "node1")
    assert (cron.paths.folder / read_runs(cron.paths)[0].output).read_text() == "42\n"


def test_a_signal_and_a_program_that_is_not_there_are_failures(cron: Cron) -> None:
    code, run, _ = ran(cron, "kill -SEGV $$")
    assert (code, run.state, run.detail) == (139, "failed", "killed by SIGSEGV")
    (cron.paths.hourly / "one.slurm").write_text("#!/nowhere\n")
    started = start_job(cron, job_files(cron.paths, False)[0], "abc", 3600)
    assert execute(cron, started.run, digest_of("#!/nowhere\n"), 1, "x") == 126
    assert "/nowhere" in read_runs(cron.paths)[-1].detail


def test_one_that_hangs_is_ended_near_its_limit_with_all_that_it_started(cron: Cron) -> None:
    began = time.monotonic()
    code, run, output = ran(cron, "sleep 1000 & echo $!; wait", "#SBATCH --time=0:01")
    assert (code, run.state) == (124, "timeout") and time.monotonic() - began < 90
    state = Path(f"/proc/{int(output)}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_it_leaves_in_the_background_is_not_waited_for(cron: Cron) -> None:
    began = time.monotonic()
    code, _, output = ran(cron, "sleep 1000 & echo done")
    assert (code, output) == (0, "done\n") and time.monotonic() - began < 90


def test_its_output_is_of_bounded_size_with_beginning_and_end(cron: Cron) -> None:
    _, _, output = ran(cron, f"echo begin; yes | head -c {3 * MOST_BYTES}; echo end")
    assert len(output) < MOST_BYTES + END_BYTES + 100
    assert output.startswith("begin\n") and output.endswith("end\n")
    mark = re.search(r"[.]{3} ([0-9]+) [^.]*[.]{3}\n", output)
    assert mark is not None, "the place where bytes are left out is marked with their number"
    assert int(mark[1]) + len(output) - len(mark[0]) == len("begin\nend\n") + 3 * MOST_BYTES


def test_of_many_runs_the_newest_outputs_are_kept(cron: Cron) -> None:
    for number in range(KEPT_OUTPUTS + 5):
        (cron.paths.logs / f"hourly-one.20200101T0000{number:02d}-abcdef.out").touch()
    (cron.paths.logs / "hourly-other.20200101T000000-abcdef.out").touch()
    _, run, _ = ran(cron, "true")
    kept = sorted(path.name for path in cron.paths.logs.glob("hourly-one.*"))
    assert len(kept) == KEPT_OUTPUTS and Path(run.output).name in kept
    assert list(cron.paths.logs.glob("hourly-other.*"))


def test_a_program_that_somebody_has_changed_meanwhile_is_not_run(cron: Cron, tmp_path: Path) -> None:
    add(cron, "hourly/one", f"touch {tmp_path}/ran")
    started = start_job(cron, job_files(cron.paths, False)[0], "abc", 3600)
    text = cron.paths.text(started.run)
    digest = digest_of(text.read_text())
    text.write_text(text.read_text() + f"touch {tmp_path}/hacked\n")
    assert execute(cron, started.run, digest, 1, "x") == 126
    assert not (tmp_path / "ran").exists() and not (tmp_path / "hacked").exists()
    assert read_runs(cron.paths)[0].state == "failed"


def test_what_is_put_into_the_folder_after_it_was_read_does_not_run(cron: Cron) -> None:
    add(cron, "hourly/one", "echo first")
    started = start_job(cron, job_files(cron.paths, False)[0], "abc", 3600)
    digest = digest_of(cron.paths.text(started.run).read_text())
    add(cron, "hourly/one", "echo second")
    execute(cron, started.run, digest, 1, "x")
    assert (cron.paths.folder / read_runs(cron.paths)[0].output).read_text() == "first\n"


def test_a_run_that_was_closed_or_has_begun_is_not_begun_again(cron: Cron) -> None:
    _, run, _ = ran(cron, "true")
    with pytest.raises(OpsctlError, match=f"{run.run} .*done"):
        execute(cron, run.run, "", 1, "x")
    with pytest.raises(OpsctlError, match="20200101T000000-abcdef"):
        execute(cron, "20200101T000000-abcdef", "", 1, "x")
