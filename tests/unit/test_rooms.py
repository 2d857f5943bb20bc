"""Test which package may import which."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.cli import COMMANDS, HIDDEN, main
from opsctl.cli.json_schema import all_printed

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "deepspeed", "numpy", "tokenizers", "transformers"}
#: One process, so that every source is parsed once.
pytestmark = pytest.mark.xdist_group("rooms")

#: Each package with its subpackages, from the top down. A module imports only from its own row and the rows below it.
#: The same holds inside a row. Modules directly in a package that a row does not name are below its subpackages.
OPSCTL = {
    "cli": (),
    "local": ("demo", "cluster"),
    "ui": ("doctor", "tui", "report", "status"),
    "monitoring": ("watch", "disk", "alerts"),
    "jobs": ("runner", "control", "evaluation", "background", "scheduler"),
    "transfer": ("backups", "hub", "sending", "object_store"),
    "diagnosis": ("triage", "goodput", "hangs", "probe", "nodes", "carbon"),
    "run": (
        *("init", "permissions", "environments", "planning", "attempts", "checkpoints", "logs", "state"),
        *("render", "config", "programs"),
    ),
    "slurm": (),
    "core": ("dirwalk", "files"),
}
TRAINER = {
    "pretrain_gpt": (),
    "launch": (),
    "launcher": ("probing", "energy"),
    "loop": (),
    "generation": (),
    "tasks": (),
    "convert": (),
    "checkpoint": (),
    "data": (),
    "engine": (),
    "optim": (),
    "model": (),
    "parallel": (),
    "kernels": (),
    "formats": ("checkpoint", "data", "attempt", "logs"),
    "core": (),
    "recipe": (),
}
#: What opsctl may import of the trainer; the trainer imports nothing of opsctl.
SHARED = {"recipe", "formats"}
#: Subpackages that may be imported by one package only.
ONLY_FOR = {"local": "cli"}


def imported_names(source: Path) -> set[str]:
    """Every module that `source` imports, wherever and however in it, as far as its text says which.

    `from package import name` counts as `package.name`, and of a name that is put together its beginning.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            folder = source.relative_to(ROOT).parent.parts
            above = folder[: len(folder) + 1 - node.level] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else ())))
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            names |= {imported_by_name(node.args[0])} if called in ("import_module", "__import__") else set()
    return names


@functools.cache
def imports_of(source: Path) -> set[str]:
    """Return `imported_names` of a source of the checkout."""
    return imported_names(source)


def imported_by_name(argument: ast.expr) -> str:
    """The module that a text names; the beginning of one that is put together, empty where a variable says it."""
    first = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
    return str(first.value).strip(".") if isinstance(first, ast.Constant) else ""


def module_of(source: Path) -> str:
    return ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def floor_of(module: str) -> tuple[str, int, int]:
    """Return (row, row's floor, subpackage's floor) of a module of ours; higher floors are nearer to the command line.

    A name that is no module counts as the package that it is in. Raises KeyError for a module that is in no row.
    """
    package, first, second, *_ = (*module.split("."), "", "")
    table = OPSCTL if package == "opsctl" else TRAINER
    rows, parts = list(table), table[first]
    return first, len(rows) - rows.index(first), len(parts) - parts.index(second) if second in parts else 0


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports_that_point_up(source: Path) -> list[str]:
    """Return the imports of a source that the tables do not allow."""
    module = module_of(source)
    package = module.partition(".")[0]
    row, floor, part = floor_of(module)
    wrong = []
    for name in imports_of(source):
        other = name.partition(".")[0]
        if other not in ("opsctl", "trainer") or "." not in name or not is_module(".".join(name.split(".")[:2])):
            continue
        if other != package:
            wrong += [] if other == "trainer" and name.split(".")[1] in SHARED else [name]
            continue
        row_there, floor_there, part_there = floor_of(name)
        is_up = floor_there > floor or (row_there == row and part_there > part)
        is_kept = ONLY_FOR.get(row_there, row) not in (row, row_there) and row != row_there
        wrong += [name] if is_up or is_kept else []
    return wrong


@pytest.mark.parametrize("package", ["opsctl", "trainer"])
def test_every_import_points_down(package: str) -> None:
    outside = {"opsctl", "opsctl.__main__", "trainer"}
    checked = [source for source in sources(package) if module_of(source) not in outside]
    found = {str(source.relative_to(ROOT)): imports_that_point_up(source) for source in checked}
    assert {source: names for source, names in found.items() if names} == {}


@pytest.mark.parametrize("package", ["opsctl", "trainer"])
def test_every_import_of_ours_names_a_module_that_exists(package: str) -> None:
    """Imports in functions included: mypy takes a missing module for one without types."""
    found = {
        name
        for source in sources(package)
        for name in imports_of(source)
        if name.startswith(("opsctl.", "trainer.")) and not (is_module(name) or is_module(name.rpartition(".")[0]))
    }
    assert found == set()


@pytest.mark.parametrize(("package", "table"), [("opsctl", OPSCTL), ("trainer", TRAINER)])
def test_no_row_of_the_tables_is_empty(package: str, table: dict[str, tuple[str, ...]]) -> None:
    for row, parts in table.items():
        assert [one for one in (row, *(f"{row}.{part}" for part in parts)) if not is_module(f"{package}.{one}")] == []


def test_at_most_six_modules_lie_directly_in_opsctl() -> None:
    assert len(list((ROOT / "opsctl").glob("*.py"))) <= 6


def test_an_import_is_seen_wherever_and_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    source = tmp_path / "opsctl" / "slurm" / "arrays.py"
    source.parent.mkdir(parents=True)
    lines = {
        "import a.b": "a.b",
        "from a.b import c": "a.b.c",
        "from . import rows": "opsctl.slurm.rows",
        "from ..run import attempts": "opsctl.run.attempts",
        "from .. import jobs": "opsctl.jobs",
        "import importlib; importlib.import_module('opsctl.jobs.control.submit')": "opsctl.jobs.control.submit",
        "from importlib import import_module; import_module(f'opsctl.cli.{name}')": "opsctl.cli",
        "__import__('opsctl.monitoring')": "opsctl.monitoring",
    }
    for line, name in lines.items():
        source.write_text(f"def function():\n    if True:\n        {line}\n")
        assert name in imported_names(source), line


def test_an_import_of_a_higher_row_or_subpackage_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for name in (
        "run/state",
        "run/config",
        "jobs/control",
        "core/files",
        "local/demo",
        "ui/status",
        "monitoring/alerts",
    ):
        (tmp_path / "opsctl" / name).mkdir(parents=True)
    for at, name, is_wrong in [
        ("run/config/a.py", "opsctl.jobs.control.submit", True),
        ("run/config/b.py", "opsctl.run.state.lease", True),
        ("run/state/c.py", "opsctl.run.config.paths", False),
        ("core/files/d.py", "opsctl.core.errors", False),
        ("ui/status/e.py", "opsctl.local.demo.play", True),
        ("jobs/control/f.py", "trainer.loop.train", True),
        ("jobs/control/g.py", "opsctl.core.files.trusted", False),
        ("jobs/h.py", "opsctl.jobs.control.submit", True),
        ("monitoring/watch.py", "opsctl.monitoring.alerts.handle", False),
    ]:
        source = tmp_path / "opsctl" / at
        source.write_text(f"import {name}\n")
        (tmp_path / name.replace(".", "/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / (name.replace(".", "/") + ".py")).touch()
        assert bool(imports_that_point_up(source)) == is_wrong, (at, name)


def test_operations_need_no_torch() -> None:
    """The other way round, that the trainer needs no opsctl, follows from the table of its rooms."""
    assert [source for source in sources("opsctl") if HEAVY & {name.split(".")[0] for name in imports_of(source)}] == []


def test_the_rooms_that_both_packages_share_load_no_torch() -> None:
    modules = [module_of(source) for room in ("recipe", "formats") for source in sources(f"trainer/{room}")]
    code = f"import sys, {', '.join(modules)}; print(sorted(set({sorted(HEAVY)!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit code, the output and the errors of an opsctl command."""
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert isinstance(stop.value.code, int)
    return stop.value.code, *capsys.readouterr()


@pytest.mark.parametrize("command", [*COMMANDS, *HIDDEN])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed(capsys, command, "--help")
    assert (code, err) == (0, "") and out.startswith(f"Usage: opsctl {command} ")


def test_the_structs_that_commands_name_for_json_are_where_they_say() -> None:
    assert len(all_printed()) > 100


@pytest.mark.parametrize(("group", "exit_code"), [("kill-switch", 2), ("watch", 3)])
def test_a_group_without_a_command_shows_its_help(
    group: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = typed(capsys, group)
    assert (code, out) == (exit_code, "") and err.startswith("Usage: opsctl ")


def test_a_misspelt_command_is_one_line_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = typed(capsys, "stauts")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(fact in err for fact in ("'stauts'", " status", "opsctl --help"))
