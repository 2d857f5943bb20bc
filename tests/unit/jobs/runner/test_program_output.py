"""A program's output is passed on at once, also a bar that has no line end."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.jobs.runner.checkpoint_watch import ProgramStart
from opsctl.jobs.runner.program_output import LineEnds, ProgramOutput
from opsctl.run.config.program import program_of
from opsctl.run.config.schema import ProgramTable, RunFile, RunTable, SlurmTable
from trainer.formats.logs.log_lines import FreshStart, parse_checkpoint_line


def test_whole_lines_are_passed_on_as_they_are() -> None:
    lines = LineEnds(0.0)
    assert lines.passed(b"step 1\nstep", 9.0) == b"step 1\nstep" and not lines.is_bar
    assert lines.passed(b" 2\n", 19.0) == b" 2\n"


def test_a_bar_gets_a_line_end_once_a_second_and_when_it_stays_as_it_is() -> None:
    lines = LineEnds(0.0)
    passed = [lines.passed(b"\r 1/9", at) for at in (0.1, 0.5, 1.1, 1.5, 2.2)]
    assert passed == [b"\r 1/9", b"\r 1/9", b"\r\n 1/9", b"\r 1/9", b"\r\n 1/9"]
    assert lines.is_bar and lines.after_quiet(2.7) == b"\n" and not lines.is_bar
    assert lines.passed(b"\r 2/9", 9.0) == b"\r 2/9" and lines.is_bar


def test_all_output_of_a_process_arrives_before_the_end() -> None:
    reader, writer = os.pipe()
    output = ProgramOutput(writer)
    output.start()
    subprocess.run([sys.executable, "-c", "print('x' * 30_000)"], stdout=output.end, check=True)
    output.close(10)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"x" * 30_000 + b"\n"


@pytest.mark.parametrize("pattern", ["/r/saved/step-*", None])
def test_a_start_without_a_checkpoint_is_a_fresh_start_in_the_log(pattern: str | None, tmp_path: Path) -> None:
    table = ProgramTable(command=("torchrun", "train.py"))
    slurm = SlurmTable(nodes=1, gpus_per_node=1, time="1:00:00")
    program = program_of(RunFile(run=RunTable(name="x"), slurm=slurm, program=table), tmp_path)
    assert program is not None
    lines = ProgramStart(replace(program, checkpoints=pattern), None).log_line().splitlines()
    assert (pattern or "[program] checkpoints") in lines[0] and parse_checkpoint_line(lines[-1]) == FreshStart()
