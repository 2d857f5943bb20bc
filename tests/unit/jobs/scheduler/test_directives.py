"""The #SBATCH lines that a job file may have."""

from __future__ import annotations

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.scheduler.context import interpreter_of, needs_internet, own_directives


def lines(*own: str) -> str:
    return "\n".join(["#!/bin/bash -e", *own, "", "echo hello", "#SBATCH --array=1-3"])


def test_its_own_lines_are_read_as_sbatch_reads_them() -> None:
    text = lines("#SBATCH --time=10:00 --mem 2G", "# words", "#SBATCH -p prepost -J 'my job' # why", "#SBATCH -n2")
    assert own_directives(text) == {
        "time": "10:00",
        "mem": "2G",
        "partition": "prepost",
        "job-name": "my job",
        "ntasks": "2",
    }
    assert interpreter_of(text) == ["/bin/bash", "-e"]


@pytest.mark.parametrize("line", ["--gpus=1", "-G 1", "--gres=gpu:1", "--gpus-per-node=2", "--gre=gpu:1", "--gpu=1"])
def test_gpus_are_refused_by_name(line: str) -> None:
    with pytest.raises(OpsctlError, match=r"#SBATCH --g.*GPU"):
        own_directives(lines(f"#SBATCH {line}"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--array=1-3", "--array: .*allowed are account"),
        ("-a 1-3", "--array"),
        ("--tim=3", "--tim: "),
        ("--time", "--time: .*value"),
        ("-p 'open", "No closing quotation"),
        ("--partition=a\x1bb", "control character"),
        ("word", "is no option"),
    ],
)
def test_what_is_not_a_jobs_to_set_is_refused_by_name(line: str, why: str) -> None:
    with pytest.raises(OpsctlError, match=why):
        own_directives(lines(f"#SBATCH {line}"))


@pytest.mark.parametrize("text", ["", "echo hello\n", "\n#!/bin/bash\n", "#!\n"])
def test_a_file_without_a_first_line_that_says_what_runs_it_is_refused(text: str) -> None:
    with pytest.raises(OpsctlError, match="#!"):
        own_directives(text)


@pytest.mark.parametrize(
    ("own", "needs"),
    [
        (["#SBATCH --time=1", "", "#OPSCTL internet"], True),
        (["# needs no internet"], False),
        (["", "true", "#OPSCTL internet"], False),
    ],
)
def test_a_job_says_before_its_first_command_that_it_needs_the_internet(own: list[str], needs: bool) -> None:
    assert needs_internet(lines(*own)) is needs


def test_another_word_of_ours_is_refused_by_name() -> None:
    with pytest.raises(OpsctlError, match=r"#OPSCTL internt: .*internet"):
        needs_internet(lines("#OPSCTL internt"))
