"""Where a program of a run file is started, and where its checkpoints are found."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from opsctl.run.config.checks import find_problems
from opsctl.run.config.expansion import expand_file
from opsctl.run.config.load import load_run_file
from opsctl.run.config.program import Program, program_of
from opsctl.run.config.schema import KINDS_OF_PROGRAMS

PAGE = Path(__file__).parents[4] / "docs" / "your-trainer.md"
RUN = """
[run]
name = "x"
[slurm]
nodes = 1
gpus_per_node = 1
time = "1:00:00"
[program]
command = ["torchrun", "train.py"]
"""


def program(folder: Path, more: str, variables: dict[str, str]) -> Program:
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_text(RUN + more)
    loaded = load_run_file(folder / "run.toml", {})
    found = program_of(expand_file(loaded.file, loaded.path, variables, variables), folder)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("more", "started_in", "pattern"),
    [
        ('checkpoints = "saved/step-*"', "run [1]", "run [[]1]/saved/step-*"),
        ('folder = "../code"\ncheckpoints = "saved/step-*"', "code", "code/saved/step-*"),
        ('folder = "${CODE}/v2"\nkind = "transformers"', "code/v2", "code/v2/*/checkpoint-*"),
        ('folder = "../code"\ncheckpoints = "~/step-*"', "code", "step-*"),
        ('folder = "../code"\ncheckpoints = "${CODE}/step-*"', "code", "code/step-*"),
    ],
)
def test_a_program_is_started_in_its_folder_where_relative_checkpoints_begin(
    more: str, started_in: str, pattern: str, tmp_path: Path
) -> None:
    found = program(tmp_path / "run [1]", more, {"CODE": str(tmp_path / "code"), "HOME": str(tmp_path)})
    assert (found.folder.resolve(), found.checkpoints) == (tmp_path / started_in, str(tmp_path / pattern))


def test_a_folder_that_does_not_exist_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN + 'folder = "gone"')
    loaded = load_run_file(tmp_path / "run.toml", {})
    assert any("[program] folder" in one and str(tmp_path / "gone") in one for one in find_problems(loaded).problems)
    (tmp_path / "gone").mkdir()
    assert find_problems(loaded).problems == ()


#: The run files that the page shows; of most kinds only the table.
EXAMPLES = [block for block in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "[program]" in block]


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: tomllib.loads(text)["program"].get("kind", "command"))
def test_each_run_file_of_the_page_can_be_planned(text: str, tmp_path: Path) -> None:
    (tmp_path / "env.sh").touch()
    (tmp_path / "run.toml").write_text(text if "[run]" in text else RUN.partition("[program]")[0] + text)
    loaded = load_run_file(tmp_path / "run.toml", {})
    found = find_problems(loaded)
    assert (found.problems, found.run is not None) == ((), True)
    described = program_of(found.run.file, tmp_path) if found.run else None
    assert described is not None and described.checkpoints
    fields = {word for word in described.command if "{" in word}
    assert fields <= {"trainer.num_nodes={nodes}", "--trainer.num_nodes={nodes}"}


def test_the_page_has_an_example_of_every_kind() -> None:
    kinds = {tomllib.loads(text)["program"].get("kind", "command") for text in EXAMPLES}
    assert kinds == set(KINDS_OF_PROGRAMS)
