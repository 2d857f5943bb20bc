"""How the rooms of the house may depend on each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.cli import COMMANDS, HIDDEN

ROOT = Path(__file__).resolve().parents[2]
TORCH_FREE = {
    "options",
    "option_table",
    "option_rules",
    "sizes",
    "layout",
    "schedule",
    "engine_config",
    "vocabulary",
    "checkpoint.compatible",
    "checkpoint.errors",
    "checkpoint.manifest",
    "loop.lengths",
    "data.sources",
    "data.errors",
    "data.check",
    "data.header",
    "data.vocabulary_source",
}
HEAVY = {"torch", "deepspeed", "numpy", "tokenizers", "transformers"}


def imported_names(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("source", sources("opsctl"), ids=lambda path: str(path.relative_to(ROOT)))
def test_operations_need_no_torch(source: Path) -> None:
    for name in imported_names(source):
        assert name.split(".")[0] not in HEAVY, name
        if name.startswith("trainer."):
            assert name.removeprefix("trainer.") in TORCH_FREE, name


@pytest.mark.parametrize("source", sources("trainer"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_trainer_works_without_opsctl(source: Path) -> None:
    assert not {name for name in imported_names(source) if name.split(".")[0] == "opsctl"}


@pytest.mark.parametrize("module", sorted(TORCH_FREE))
def test_what_both_packages_share_loads_no_torch(module: str) -> None:
    code = f"import sys, trainer.{module}; print(sorted(set({sorted(HEAVY)!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("command", [*COMMANDS, *HIDDEN])
def test_every_command_explains_itself(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", command, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: opsctl {command} ")


@pytest.mark.parametrize(("words", "code"), [([], 2), (["kill-switch"], 2), (["watch"], 3)])
def test_without_a_command_the_help_is_shown_as_it_is(words: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "opsctl", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("Usage: opsctl ")


def test_a_misspelt_command_is_one_line_with_the_nearest_name() -> None:
    done = subprocess.run([sys.executable, "-m", "opsctl", "stauts"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "opsctl: no command 'stauts'; did you mean status? (opsctl --help lists them)\n"
