"""Whole scripts: golden files, shellcheck, and the step script in use."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from opsctl.core.errors import RunFileError
from opsctl.core.shipped import templates_folder
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import load_run_file
from opsctl.run.render.batch import ChainRequest, batch_script, step_script
from opsctl.slurm.cluster import Cluster
from tests.tiny_run import expand

EXAMPLES = sorted(path.stem for path in (templates_folder() / "examples").glob("*.toml"))
OWN = Cluster()
LOCAL = Cluster("lab", "/c/slurm.conf", ("/opt/slurm 22/bin",), ("/opt/slurm 22/lib",))


def example(name: str, tmp_path: Path) -> ExpandedRun:
    path = tmp_path / "run.toml"
    path.write_text((templates_folder() / "examples" / f"{name}.toml").read_text())
    names = set(re.findall(r"\$\{(\w+)\}", path.read_text()))
    return expand(load_run_file(path, {one: f"/{one}" for one in names}))


def request(**changes: object) -> ChainRequest:
    values = {
        "array": "1-3%1",
        "run_id": "5eed5eed5eed5eed",
        "token": "70ce70ce70ce",
        "submitted_at": datetime(2022, 3, 11, 11, 42, tzinfo=UTC),
        "python": "/env/bin/python",
        "folder": "/runs/here",
    }
    return ChainRequest(**{**values, **changes})  # type: ignore[arg-type]


def scripts(name: str, tmp_path: Path) -> dict[str, str]:
    run = example(name, tmp_path)
    batch = batch_script(run, OWN, request())
    return {
        f"{name}.batch.sh": batch.replace(str(tmp_path), "/runs/here"),
        f"{name}.step.sh": step_script(run).replace(str(tmp_path), "/runs/here"),
    }


def shellcheck(text: str, tmp_path: Path, *options: str) -> None:
    path = tmp_path / "script.sh"
    path.write_text(text)
    program = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([program, "--severity=style", *options, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_scripts_are_the_golden_ones(
    name: str, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    for file, text in scripts(name, tmp_path).items():
        golden(f"scripts/{file}", text)


@pytest.mark.parametrize("name", EXAMPLES)
def test_shellcheck_accepts_the_examples_scripts(name: str, tmp_path: Path) -> None:
    for text in scripts(name, tmp_path).values():
        shellcheck(text, tmp_path)


def hostile_run(tmp_path: Path) -> ExpandedRun:
    folder = tmp_path / 'it\'s "a" $(touch pwned) `x` 50%x; #1 -- é'
    folder.mkdir()
    path = folder / "run.toml"
    path.write_text((templates_folder() / "examples" / "demo.toml").read_text())
    (folder / "env.sh").write_text("export FROM_SCRIPT=yes\n")
    run = expand(load_run_file(path, {}))
    table = msgspec.structs.replace(run.file.run, environment=str(folder / "env.sh"))
    env = {"ODD": "a'b\"c $(touch pwned) \\ `x`", "PLAIN": "1"}
    return replace(run, file=msgspec.structs.replace(run.file, run=table, env=env))


def test_shellcheck_accepts_hostile_paths_arguments_and_clusters(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    wish = request(folder=str(run.folder), arguments=("--lr", "1e-3", "it's", "$(touch pwned)"), after=("12",))
    # SC2016 asks whether an expression in single quotes was meant to expand: here it was not.
    shellcheck(batch_script(run, LOCAL, wish), tmp_path, "--exclude=SC2016")
    shellcheck(step_script(run), tmp_path, "--exclude=SC2016")


def test_every_directive_comes_before_the_first_command(tmp_path: Path) -> None:
    lines = scripts("tr11-176B-ml", tmp_path)["tr11-176B-ml.batch.sh"].splitlines()
    directives = [n for n, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert lines[0] == "#!/bin/bash"
    assert directives == list(range(1, 1 + len(directives)))


def test_a_chain_asks_for_what_it_was_given(tmp_path: Path) -> None:
    run = example("tr11-176B-ml", tmp_path)
    file = msgspec.structs.replace(run.file, slurm=msgspec.structs.replace(run.file.slurm, exclude="bad1"))
    wish = request(nodes=24, exclude="bad[2-3]", begin="now+1hour", after=("7", "9"), hold=True)
    text = batch_script(replace(run, file=file), OWN, wish)
    for line in (
        "--nodes=24",
        "--exclude=bad1,bad[2-3]",
        "--begin=now+1hour",
        "--dependency=afterany:7:9",
        "--hold",
        "--array=1-3%1",
        "--signal=B:USR1@600",
        "--comment='opsctl run=5eed5eed5eed5eed submit=70ce70ce70ce'",
        "--hint=nomultithread",
    ):
        assert f"#SBATCH {line}\n" in text


def test_with_spare_nodes_the_job_asks_for_more_outlives_a_lost_one_and_knows_how_many_it_can_spare(
    tmp_path: Path,
) -> None:
    run = example("demo", tmp_path)
    slurm = msgspec.structs.replace(run.file.slurm, spare=2)
    text = batch_script(replace(run, file=msgspec.structs.replace(run.file, slurm=slurm)), OWN, request(nodes=24))
    assert "#SBATCH --nodes=26\n" in text and "#SBATCH --no-kill\n" in text
    assert " \\\n    --spare 2\n" in text
    shellcheck(text, tmp_path)
    plain = batch_script(run, OWN, request())
    assert "no-kill" not in plain and "--spare" not in plain


def test_the_script_which_no_member_can_edit_says_that_only_the_owner_publishes(tmp_path: Path) -> None:
    run = example("demo", tmp_path)
    table = msgspec.structs.replace(run.file.run, publish="owner")
    text = batch_script(replace(run, file=msgspec.structs.replace(run.file, run=table)), OWN, request(arguments=("a",)))
    assert " \\\n    --publish owner \\\n    -- a\n" in text
    assert "--publish" not in batch_script(run, OWN, request())
    shellcheck(text, tmp_path)


def run_batch(tmp_path: Path, run: ExpandedRun) -> subprocess.CompletedProcess[str]:
    """Run the batch script as a job, with a program in place of opsctl that writes a word to both outputs."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho trained; echo failed >&2\n")
    program.chmod(0o755)
    script = tmp_path / "batch.sh"
    script.write_text(batch_script(run, OWN, request(python=str(program))))
    job = {"SLURM_JOB_NAME": "a b", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    return subprocess.run(
        ["bash", script],
        env={"PATH": os.environ["PATH"], **job},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20,
    )


def test_where_only_the_owner_publishes_no_member_has_a_jobs_output_written_elsewhere(tmp_path: Path) -> None:
    run = example("demo", tmp_path)
    run.paths.job_outputs.mkdir(parents=True)
    thesis, output = tmp_path / "thesis.txt", run.paths.job_outputs / "a b-7_2.out"
    assert f"--output={run.paths.job_outputs}/%x-%A_%a.out\n" in batch_script(run, OWN, request())
    table = msgspec.structs.replace(run.file.run, publish="owner")
    run = replace(run, file=msgspec.structs.replace(run.file, run=table))
    assert "--output=/dev/null\n" in batch_script(run, OWN, request())
    assert run_batch(tmp_path, run).stdout == ""
    assert output.read_text() == "trained\nfailed\n"
    output.unlink()
    thesis.write_text("years of work\n")
    planted: list[Callable[[], None]] = [
        lambda: output.symlink_to(thesis),
        lambda: output.symlink_to(tmp_path / "made"),
        lambda: output.hardlink_to(thesis),
        lambda: os.mkfifo(output),
    ]
    for put in planted:
        put()
        ended = run_batch(tmp_path, run)
        assert (ended.returncode, ended.stdout) == (0, "trained\nfailed\n"), "to where Slurm has it, which is nowhere"
        assert thesis.read_text() == "years of work\n" and not (tmp_path / "made").exists()
        output.unlink()
    shellcheck(batch_script(run, OWN, request()), tmp_path)


def test_what_is_not_asked_for_has_no_directive(tmp_path: Path) -> None:
    text = scripts("demo", tmp_path)["demo.batch.sh"]
    for option in ("partition", "account", "qos", "dependency", "exclude", "begin", "hold", "nice"):
        assert f"--{option}" not in text


def test_a_line_break_in_a_path_is_refused(tmp_path: Path) -> None:
    run = example("demo", tmp_path)
    with pytest.raises(RunFileError, match=r"/a\\nb"):
        batch_script(run, OWN, request(folder="/a\nb"))


def test_variables_that_no_process_can_be_given_are_refused_by_size(tmp_path: Path) -> None:
    run = example("demo", tmp_path)
    large = replace(run, file=msgspec.structs.replace(run.file, env={"LARGE": "x" * (1 << 17)}))
    with pytest.raises(RunFileError, match=r"131,\d+ bytes.* 122,880"):
        step_script(large)


def run_step(tmp_path: Path, run: ExpandedRun, *command: str, start_new_session: bool = False) -> subprocess.Popen[str]:
    script = tmp_path / "step.sh"
    script.write_text(step_script(run))
    environment = {"PATH": os.environ["PATH"], "OPSCTL_ATTEMPT_FOLDER": str(tmp_path), "SLURMD_NODENAME": "x1"}
    return subprocess.Popen(
        ["bash", script, *command],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def test_the_step_keeps_exit_status_and_copies_output_to_the_nodes_file(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    body = 'echo "$FROM_SCRIPT|$ODD"; echo err >&2; exit 7'
    child = run_step(tmp_path, run, "bash", "-c", body)
    out, _ = child.communicate(timeout=20)
    assert child.returncode == 7
    assert "yes|a'b\"c $(touch pwned) \\ `x`\n" in out
    assert (tmp_path / "x1.out").read_text() == out and "err\n" in out
    assert not (tmp_path / "pwned").exists()


def test_what_somebody_put_where_the_nodes_file_is_to_be_is_neither_written_nor_waited_for(tmp_path: Path) -> None:
    thesis, output = tmp_path / "thesis.txt", tmp_path / "x1.out"
    thesis.write_text("years of work\n")
    planted: list[Callable[[], None]] = [
        lambda: output.symlink_to(thesis),
        lambda: output.symlink_to(tmp_path / "made"),
        lambda: output.hardlink_to(thesis),
        lambda: os.mkfifo(output),
        output.mkdir,
    ]
    for put in planted:
        put()
        child = run_step(tmp_path, example("demo", tmp_path), "bash", "-c", "echo trained; exit 7")
        out, err = child.communicate(timeout=20)
        assert (child.returncode, out) == (7, "trained\n")
        assert str(output) in err
        assert thesis.read_text() == "years of work\n" and not (tmp_path / "made").exists()
        output.rmdir() if output.is_dir() else output.unlink()


def test_last_words_after_sigterm_reach_both_outputs(tmp_path: Path) -> None:
    program = """
import os, signal, time

def leave(*_):
    os.write(1, b"saved\\n")
    os._exit(3)

signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
time.sleep(30)
"""
    child = run_step(tmp_path, example("demo", tmp_path), sys.executable, "-c", program, start_new_session=True)
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    for _ in range(3):
        os.killpg(child.pid, signal.SIGTERM)
    out, _ = child.communicate(timeout=20)
    assert child.returncode == 3
    assert "saved" in out and "saved" in (tmp_path / "x1.out").read_text()


def test_a_missing_environment_script_is_named_with_its_node(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    Path(run.file.run.environment or "").unlink()
    child = run_step(tmp_path, run, "true")
    _, err = child.communicate(timeout=20)
    assert child.returncode == 1
    assert str(run.file.run.environment) in err and "x1" in err
