"""Collecting answers through a stand-in for srun, which runs the given program once for each node."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.probe.launch import ask, srun_line
from trainer.formats.attempt.node_samples import DONE, PROGRAM, ProbeLine
from trainer.formats.json_text import json_line

NODES = ("x1", "x2", "x3")


def done(node: str) -> str:
    return json_line(ProbeLine(node=node, part=PROGRAM, what=DONE))


def environment(folder: Path, body: str) -> dict[str, str]:
    """Return an environment in which srun is a script with srun's messages."""
    path = folder / "srun"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_it_ends_when_the_last_node_is_through_and_other_words_are_passed_over(tmp_path: Path) -> None:
    said = [done(node) for node in NODES]
    body = f"echo 'module loaded'; printf '%s\\n' '{said[0]}' '{{\"torn' '{said[1]}' '{said[2]}'; sleep 60"
    began = time.monotonic()
    heard = ask(srun_line(NODES, []), environment(tmp_path, body), NODES, 30.0)
    assert [line.node for line in heard.lines] == list(NODES) and heard.lost == {}
    assert time.monotonic() - began < 15


def test_nodes_that_vanish_or_whose_program_dies_are_named_with_what_slurm_says_of_them(tmp_path: Path) -> None:
    body = (
        f"echo '{done('x1')}'; echo 'srun: error: Node failure on x2' >&2; "
        "echo 'srun: error: x3: task 2: Segmentation fault' >&2; sleep 60"
    )
    heard = ask(srun_line(NODES, []), environment(tmp_path, body), NODES, 30.0)
    assert heard.lost.keys() == {"x2", "x3"}
    assert "Slurm" in heard.lost["x2"] and heard.lost["x3"].endswith("Segmentation fault")


def test_who_says_nothing_in_time_is_lost_and_whoever_wants_it_to_end_is_heard(tmp_path: Path) -> None:
    around = environment(tmp_path, f"trap '' TERM; echo '{done('x1')}'; sleep 60 & wait; sleep 60")
    began = time.monotonic()
    heard = ask(srun_line(NODES, []), around, NODES, 0.5)
    assert heard.late.keys() == {"x2", "x3"} and not heard.lost and not heard.cut_short
    assert ask(srun_line(NODES, []), around, NODES, 30.0, lambda: True).cut_short
    assert time.monotonic() - began < 25


def test_without_srun_it_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OpsctlError, match=r"^srun .*PATH"):
        ask(srun_line(NODES, []), {"PATH": str(tmp_path)}, NODES, 1.0)


def test_the_step_keeps_nothing_of_the_allocation_and_outlives_a_failed_node() -> None:
    line = srun_line(NODES, ["python"])
    assert {"--overlap", "--no-kill", "--kill-on-bad-exit=0", "--nodelist=x1,x2,x3", "--nodes=3"} <= set(line)
