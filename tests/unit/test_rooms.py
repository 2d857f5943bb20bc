"""How the rooms of the house may depend on each other."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.cli import COMMANDS, HIDDEN, main

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "deepspeed", "numpy", "tokenizers", "transformers"}
#: One process, so that every source is parsed once.
pytestmark = pytest.mark.xdist_group("rooms")

#: The house, from the ground up: every room with the rooms that it may import. All of them stand above it here, so no
#: arrow goes up and no circle can be. Everybody may import its own package's ground.
OPSCTL = {
    "ground": {"trainer.formats"},
    "slurm": set(),
    "stores": {"trainer.formats"},
    "walks": set(),
    "runs": {"slurm", "trainer.recipe", "trainer.formats"},
    "render": {"runs", "slurm"},
    "records": {"render", "runs", "slurm", "walks", "trainer.formats", "trainer.recipe"},
    "perms": {"records", "runs", "walks", "trainer.formats"},
    "logs": {"records", "runs", "trainer.formats"},
    "checkpoints": {"records", "runs", "trainer.recipe", "trainer.formats"},
    "planning": {"checkpoints", "logs", "runs", "slurm", "trainer.formats", "trainer.recipe"},
    "beginning": {"planning", "runs", "slurm", "trainer.formats", "trainer.recipe"},
    "carbon": {"planning", "records", "runs", "trainer.formats"},
    "attempts": {"checkpoints", "records", "runs", "slurm", "trainer.formats"},
    "nodes": {"attempts", "records", "runs", "slurm", "trainer.formats"},
    "hangs": {"attempts", "trainer.formats"},
    "triage": {"attempts", "hangs", "logs", "records", "runs", "slurm", "trainer.formats"},
    "goodput": {"attempts", "logs", "slurm", "trainer.formats"},
    "environments": {"attempts", "records", "render", "runs", "trainer.formats"},
    "control": {
        *("attempts", "checkpoints", "environments", "logs", "nodes", "planning", "records", "render", "runs"),
        "slurm",
        *("trainer.formats", "trainer.recipe"),
    },
    "backups": {"checkpoints", "control", "records", "runs", "stores", "trainer.formats", "trainer.recipe"},
    "hub": {"carbon", "checkpoints", "logs", "records", "runs", "slurm", "stores", "trainer.formats"},
    "watch": {
        *("attempts", "backups", "checkpoints", "hub", "logs", "records", "runs", "slurm", "walks"),
        *("trainer.formats", "trainer.recipe"),
    },
    "disk": {"records", "walks", "watch", "trainer.formats"},
    "alerts": {"records", "runs", "slurm", "watch", "trainer.formats"},
    "cron": {"records", "render", "runs", "slurm", "trainer.formats"},
    "errands": {"records", "render", "runs", "slurm", "trainer.formats"},
    "evaluation": {"checkpoints", "errands", "records", "runs", "slurm", "trainer.formats"},
    "status": {
        "attempts",
        "carbon",
        "checkpoints",
        "evaluation",
        "goodput",
        "hub",
        "logs",
        "records",
        "runs",
        "slurm",
        "watch",
        "trainer.formats",
    },
    "report": {
        *("attempts", "carbon", "goodput", "logs", "nodes", "planning", "records", "runs", "slurm", "status", "watch"),
        *("trainer.formats", "trainer.recipe"),
    },
    "live": {"logs", "records", "runs", "slurm", "status", "watch", "trainer.formats", "trainer.recipe"},
    "doctor": {
        "control",
        "environments",
        "evaluation",
        "records",
        "runs",
        "slurm",
        "walks",
        "watch",
        "trainer.formats",
    },
    "probe": {"records", "runs", "slurm", "trainer.formats"},
    "job": {
        *("attempts", "checkpoints", "control", "cron", "hangs", "logs", "nodes", "probe", "records", "render"),
        "runs",
        *("slurm", "triage", "trainer.formats", "trainer.recipe"),
    },
    "localcluster": {"records", "slurm"},
    "demo": {"localcluster", "logs", "records", "runs", "trainer.formats"},
    "cli": {
        *(
            "alerts",
            "attempts",
            "backups",
            "beginning",
            "carbon",
            "checkpoints",
            "control",
            "cron",
            "demo",
            "disk",
            "goodput",
            "hangs",
            "hub",
            "errands",
            "doctor",
            "environments",
            "evaluation",
            "job",
            "live",
            "localcluster",
            "logs",
            "nodes",
            "perms",
            "planning",
            "probe",
            "report",
            "records",
            "render",
            "runs",
            "slurm",
        ),
        *("status", "stores", "triage", "walks", "watch", "trainer.formats"),
    },
}
TRAINER = {
    "ground": set(),
    "recipe": set(),
    "formats": {"recipe"},
    "native": {"formats"},
    "kernels": {"formats", "native", "recipe"},
    "parallel": {"kernels", "recipe"},
    "model": {"kernels", "parallel", "recipe"},
    "optim": {"kernels", "parallel", "recipe"},
    "energy": {"formats"},
    "engine": {"model", "optim", "parallel", "recipe"},
    "data": {"formats", "native", "recipe"},
    "checkpoint": {"formats"},
    "interchange": {"checkpoint", "data", "formats", "recipe"},
    "tasks": set(),
    "probing": {"formats"},
    "generation": {"checkpoint", "data", "formats", "interchange", "model", "parallel", "recipe"},
    "loop": {"checkpoint", "data", "engine", "formats", "model", "parallel", "recipe"},
    "pretrain_gpt": {"checkpoint", "energy", "engine", "formats", "kernels", "loop", "parallel", "recipe"},
    "launch": {"formats", "recipe"},
}
#: What is no folder: module -> room.
SINGLE = {
    **{
        f"opsctl.{name}": "ground"
        for name in ("", "account", "amounts", "errors", "moments", "output", "programs", "shipped", "tcp_ports")
    },
    "opsctl.__main__": "cli",
    **{
        f"trainer.{name}": "ground"
        for name in ("", "agreement", "dtypes", "files", "held_folder", "preload", "say", "uncompiled")
    },
    **{
        f"trainer.{name}": "launch"
        for name in (
            *("launch", "attempt_records", "environment_record", "first_failure", "stack_signal", "stacks"),
            *("node_sampler", "host_memory", "gpu_samples", "spying", "flight_dumps"),
        )
    },
    **{f"trainer.{name}": name for name in ("engine", "pretrain_gpt")},
}


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
def room_of(module: str) -> tuple[str, str]:
    """(package, room) of a module of ours; what is no module is a name in the package itself."""
    package, _, rest = module.partition(".")
    first = rest.partition(".")[0]
    if (ROOT / package / first).is_dir() and first:
        return package, first
    is_module = (ROOT / package / f"{first}.py").is_file() and first
    return package, SINGLE.get(f"{package}.{first}", first) if is_module else SINGLE[f"{package}."]


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def arrows(package: str) -> dict[str, dict[str, str]]:
    """room -> what it imports -> a module that does: rooms of its own package, and `trainer.ROOM` of the other."""
    found: dict[str, dict[str, str]] = {}
    for source in sources(package):
        own = room_of(module_of(source))[1]
        for name in imports_of(source):
            if name.partition(".")[0] not in ("opsctl", "trainer"):
                continue
            other_package, room = room_of(name)
            label = room if other_package == package else f"{other_package}.{room}"
            if label not in (own, "ground"):
                found.setdefault(own, {})[label] = str(source.relative_to(ROOT))
    return found


@pytest.mark.parametrize(("package", "house"), [("opsctl", OPSCTL), ("trainer", TRAINER)])
def test_every_room_imports_what_the_table_says_and_nothing_else(package: str, house: dict[str, set[str]]) -> None:
    found = arrows(package)
    assert {room: set(found.get(room, {})) for room in house} == house, found
    assert set(found) <= set(house)


@pytest.mark.parametrize(("package", "house"), [("opsctl", OPSCTL), ("trainer", TRAINER)])
def test_every_module_is_in_a_room_of_the_table_and_no_room_is_empty(package: str, house: dict[str, set[str]]) -> None:
    assert {room_of(module_of(source))[1] for source in sources(package)} == set(house)


def test_an_import_is_seen_wherever_and_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    source = tmp_path / "opsctl" / "slurm" / "arrays.py"
    source.parent.mkdir(parents=True)
    lines = {
        "import a.b": "a.b",
        "from a.b import c": "a.b.c",
        "from . import rows": "opsctl.slurm.rows",
        "from ..control import submit": "opsctl.control.submit",
        "from .. import control": "opsctl.control",
        "import importlib; importlib.import_module('opsctl.control.submit')": "opsctl.control.submit",
        "from importlib import import_module; import_module(f'opsctl.cli.{name}')": "opsctl.cli",
        "__import__('opsctl.watch')": "opsctl.watch",
    }
    for line, name in lines.items():
        source.write_text(f"def function():\n    if True:\n        {line}\n")
        assert name in imported_names(source), line


@pytest.mark.parametrize("house", [OPSCTL, TRAINER])
def test_no_arrow_goes_up_and_none_in_a_circle(house: dict[str, set[str]]) -> None:
    rooms = list(house)
    for room, below in house.items():
        above = {one for one in below if one in house and rooms.index(one) >= rooms.index(room)}
        assert not above, f"{room} stands below {above}"


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
