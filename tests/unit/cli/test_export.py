"""`opsctl export`, `import` and `generate`: the options of the trainer's programs, started without importing torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from opsctl.cli import export, generate, import_
from opsctl.cli.long_command import JOB_OPTIONS
from tests.printed_json import printed
from tests.unit.cli.called import Answer, forked
from tests.unit.trainer.convert.hf.conftest import random_model
from trainer.convert.hf import export_program, import_program
from trainer.generation import program as generation_program

OPSCTL = [sys.executable, "-m", "opsctl"]


@pytest.mark.parametrize(
    ("command", "parser", "own"),
    [
        (export.hf, export_program.parser(), {"--checkpoints", "--run"}),
        (import_.hf, import_program.parser(), set()),
        (generate.command, generation_program.parser(), {"--run"}),
    ],
    ids=["export", "import", "generate"],
)
def test_they_have_the_options_of_the_trainers_programs(command: click.Command, parser: object, own: set[str]) -> None:
    ours = {name for option in command.params for name in option.opts if name[0] == "-"}
    usage = parser.format_usage()  # type: ignore[attr-defined]
    theirs = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", usage))
    assert ours - JOB_OPTIONS - {"-q", "--quiet"} == theirs | own
    choices = {name: option.type.choices for option in command.params if isinstance(option.type, click.Choice)
               for name in option.opts}  # fmt: skip
    assert {name: list(one) for name, one in choices.items()} == {
        name: list(action.choices)
        for action in parser._actions  # type: ignore[attr-defined]
        if action.choices
        for name in action.option_strings
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "model"
    random_model("gpt2").save_pretrained(folder)
    return folder


def opsctl(*words: str, cwd: Path, code: int = 0) -> Answer:
    ran = forked(cwd, *words, environment=os.environ)
    assert ran.returncode == code, ran.stderr
    return ran


@pytest.fixture(scope="module")
def imported(published: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A run called mine with the published model as its checkpoint, and what the import printed."""
    folder = tmp_path_factory.mktemp("imported")
    # Names that look like options are not taken for such.
    shutil.copytree(published, folder / "--model")
    opsctl("init", "mine", cwd=folder)
    to = "mine/output/checkpoints"
    ran = opsctl(
        "import", "hf", "--output", to, "--make-vocab-size-divisible-by", "64", "--json", "--", "--model", cwd=folder
    )
    return folder, ran


def test_a_published_model_goes_in_and_out_from_the_command_line(imported: tuple[Path, Answer]) -> None:
    folder, ran = imported
    model = printed("import hf", ran.stdout)
    assert (model["format"], model["precision"], model["options"]["make_vocab_size_divisible_by"]) == (
        "gpt2",
        "fp32",
        64,
    )
    assert model["folder"] == str(folder / "mine/output/checkpoints/global_step0") and ran.stderr == ""
    words = ("export", "hf", "mine", "--output", "--out", "--dtype", "bfloat16", "--json")
    ran = opsctl(*words, cwd=folder)
    (exported,) = printed("export hf", ran.stdout)
    assert (exported["state"], exported["format"], exported["dtype"]) == ("written", "gpt2", "bfloat16")
    assert exported["files"] == 1 and (folder / "--out" / "model.safetensors").is_file()
    assert "\n# mine\n" in (folder / "--out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["export", "hf", "--checkpoints", ".", "--output", "out"], 1, r"opsctl: \. "),
        (["export", "hf", "mine", "--checkpoints", ".", "--output", "out"], 2, "--checkpoints"),
        (["export", "hf", "--checkpoints", "."], 2, "opsctl: Missing option '--output'."),
        pytest.param(
            ["import", "hf", "nowhere", "--output", "out"], 1, r"nowhere.*config\.json", marks=pytest.mark.nightly
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_the_designed_code(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    ran = opsctl(*words, cwd=tmp_path, code=code)
    assert ran.stdout == "" and re.search(said, ran.stderr) and ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_commands_import_no_torch() -> None:
    script = "import sys, opsctl.cli.export, opsctl.cli.import_; print({'numpy', 'torch'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "set()\n"
