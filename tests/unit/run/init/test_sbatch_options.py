"""The options of a request to Slurm, as a run file has them."""

from __future__ import annotations

import pytest

from opsctl.run.init.draft import Draft
from opsctl.run.init.sbatch_options import take_slurm
from opsctl.slurm.sbatch_lines import directives


def taken(*lines: str) -> Draft:
    begun = Draft()
    take_slurm(begun, list(directives("#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines))))
    return begun


@pytest.mark.parametrize(
    ("lines", "per_node", "kind"),
    [
        (["--gres=gpu:8"], 8, None),
        (["--gres=shm:1,gpu:a100:4"], 4, "a100"),
        (["--gres=gpu"], 1, None),
        (["--gres=gpu:3g.20gb:2"], 2, "3g.20gb"),
        (["--gpus-per-node=h100:4"], 4, "h100"),
        (["--gpus-per-task=2", "--ntasks-per-node=4"], 8, None),
        (["-N 4", "--ntasks=16", "--gpus-per-task=1"], 4, None),
        (["--gpus-per-task=1"], 1, None),
        (["-N 2", "-G 16"], 8, None),
    ],
)
def test_gpus_of_each_node_however_they_are_asked_for(lines: list[str], per_node: int, kind: str | None) -> None:
    begun = taken(*lines)
    assert (begun.value("slurm", "gpus_per_node"), begun.value("slurm", "gpu_type")) == (per_node, kind)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--gpus=7", "--gpus=7: "),
        ("--nodes=2-4", "--nodes=2-4: "),
        ("--time=UNLIMITED", "--time=UNLIMITED: "),
        ("--array=0-", "--array=0-: "),
        ("--mail-user='a b'", "--mail-user"),
        ("--signal=USR1@60", "--signal=USR1@60: "),
    ],
)
def test_what_a_run_cannot_ask_for_is_noted_with_its_line(line: str, expected: str) -> None:
    notes = taken("--nodes=2" if "nodes" not in line else "-J x", line).notes
    assert [note.line for note in notes] == [3] and expected in notes[0].text


def test_what_stands_alone_or_has_a_value_of_its_own_goes_on_to_sbatch() -> None:
    begun = taken("--exclusive", "--mem=0", "--hint=nomultithread", "--array=1-5%1")
    assert begun.value("slurm", "extra") == ["--exclusive", "--mem=0", "--hint=nomultithread"]
    assert begun.value("array", "tasks") == "1-5%1"
    assert begun.notes == []


@pytest.mark.parametrize("lines", [["-N 4", "--ntasks=6"], ["--ntasks=16"], ["-N 2", "--ntasks-per-node=$N"]])
def test_gpus_of_tasks_of_which_nobody_knows_how_many_a_node_has_are_not_taken(lines: list[str]) -> None:
    begun = taken(*lines, "--gpus-per-task=1")
    assert begun.value("slurm", "gpus_per_node") is None
    assert "--gpus-per-task=1: " in begun.notes[-1].text
