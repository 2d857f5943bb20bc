"""What docs/architecture.md claims and a program can check: names of rooms, modules, files, fields, exit codes."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import msgspec
import pytest

from opsctl import errors
from opsctl.records.chains import Chain
from opsctl.runs.paths import RunPaths
from trainer.formats.attempt_records import (
    ExitReport,
    Failure,
    LaterExit,
    RankPlace,
    SavedNote,
    SaveRequest,
    StopRequest,
    failure_file,
    ranks_file,
)
from trainer.formats.manifest import Manifest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = ("opsctl", "trainer")
#: Files that torch's elastic launcher names.
OF_TORCH = {"stdout.log", "stderr.log"}


def section(title: str) -> str:
    """The page's text under `## title`."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the table under `## title`, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def quoted(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def spread(name: str) -> list[str]:
    """`a/{b,c}.py` as a/b.py and a/c.py."""
    parts = [part.split(",") for part in re.split(r"[{}]", name)]
    return ["".join(choice) for choice in itertools.product(*parts)]


ROOM_NAMES = [name for row in rows("The rooms") for word in quoted(row[0]) for name in spread(word)]
FILES = [
    name
    for row in rows("Files that rooms exchange")
    for word in quoted(row[0])
    if re.match(r"[.\w-]+[/}]|[\w-]+$", word)
    for name in spread(word)
]
ROOMS = {
    path.name: path for package in PACKAGES for path in (ROOT / package).iterdir() if (path / "__init__.py").is_file()
}
#: Everything but the table of files on disk, whose paths lie under a run's output folder.
PROSE = PAGE.replace(section("Files that rooms exchange"), "")


def defined(module: Path) -> set[str]:
    """The names at a module's top level."""
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def exists(words: list[str], folder: Path) -> bool:
    """Whether `words` lead from `folder` to a room, a module or something that a module defines."""
    for number, word in enumerate(words):
        if (folder / word).is_dir():
            folder /= word
            continue
        module = folder / f"{word}.py"
        if not module.is_file():
            module, number = folder / "__init__.py", number - 1
        rest = words[number + 1 :]
        return not rest or (len(rest) == 1 and rest[0] in defined(module))
    return True


def dotted_names() -> list[str]:
    """`room.module`, `room/module`, `room.module.name` of the prose, however they begin."""
    found = []
    for word in quoted(PROSE):
        first = re.split(r"[./]", word)[0]
        if (
            first in {*PACKAGES, *ROOMS}
            and re.fullmatch(r"[a-z]\w*([./][a-z]\w*|[.][A-Z][a-z]\w*)+", word)
            and not word.endswith((".py", ".md"))
        ):
            found.append(word)
    return sorted(set(found))


def paths_in_the_checkout() -> list[str]:
    """Every path of the prose that names a folder or a file of the checkout."""
    first = {*PACKAGES, *ROOMS, "docs", "templates", "tests", "benchmarks"}
    words = [name for word in quoted(PROSE) for name in spread(word)]
    return sorted({word for word in words if word.partition("/")[0] in first and re.search(r"/$|\.(py|md)$", word)})


def test_every_module_path_and_page_that_the_page_names_exists() -> None:
    for name in dotted_names():
        words = re.split(r"[./]", name)
        folder = ROOT if words[0] in PACKAGES else ROOMS[words[0]].parent
        assert exists(words, folder), name
    for name in paths_in_the_checkout():
        room = name.partition("/")[0]
        assert (ROOT / name).exists() or (room in ROOMS and (ROOMS[room].parent / name).exists()), name
    for page in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / page).is_file(), page


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_and_module_of_a_package_is_in_the_table_of_rooms(package: str) -> None:
    there = {
        f"{package}/{path.name}{'/' if path.is_dir() else ''}"
        for path in (ROOT / package).iterdir()
        if (path / "__init__.py").is_file() or (path.suffix == ".py" and not path.stem.startswith("__"))
    }
    assert there == {name for name in ROOM_NAMES if name.startswith(f"{package}/")}


def placed(name: str) -> str:
    """A path under the output folder as the page writes it."""
    return name.replace("7", "JOBID")


@pytest.mark.parametrize(
    "place", [name for name, value in vars(RunPaths).items() if isinstance(value, property)] + ["stop_request"]
)
def test_every_place_under_the_output_folder_is_in_the_table_of_files(place: str) -> None:
    paths = RunPaths(Path("/output"))
    path = paths.stop_request(7) if place == "stop_request" else getattr(paths, place)
    name = placed(str(path.relative_to("/output")))
    assert any(entry == name or entry.startswith(f"{name}/") for entry in FILES), f"{name} is not in the table"


@pytest.mark.parametrize("file", [ranks_file(3), failure_file(3), "exit.json", "exit-later.json", "stop-request"])
def test_every_record_of_an_attempt_is_in_the_table_of_files(file: str) -> None:
    assert f"logs/attempts/JOBID/{file.replace('3', 'NODERANK')}" in FILES


def test_no_file_of_the_table_is_unknown_to_the_code() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    known = "\n".join(path.read_text() for path in (ROOT / "templates" / "step.sh.j2", *sources))
    for entry in FILES:
        for part in entry.split("/"):
            # What is in capitals is a number or a name of somebody's; the rest stands in the code.
            pieces = [piece for piece in re.split(r"[A-Z_*]+|\.N\b|\.\.\.", part) if piece.strip("-.")]
            if part not in OF_TORCH:
                assert all(piece in known for piece in pieces), f"{entry}: nothing writes or reads {part}"


@pytest.mark.parametrize(
    ("entry", "record"),
    [
        ("ranks-NODERANK.json", RankPlace),
        ("failure-NODERANK.json", Failure),
        ("exit.json", ExitReport),
        ("exit-later.json", LaterExit),
        ("stop-request", StopRequest),
        ("save-request", SaveRequest),
        ("saved.json", SavedNote),
        ("chains.jsonl", Chain),
        ("manifest.json", Manifest),
    ],
)
def test_the_fields_of_a_file_are_those_of_its_record(entry: str, record: type[msgspec.Struct]) -> None:
    cell = next(row[0] for row in rows("Files that rooms exchange") if f"{entry}`" in row[0])
    told = set(re.findall(r"\b[a-z][a-z_]+\b", cell.partition(f"{entry}`")[2]))
    fields = {field.encode_name for field in msgspec.structs.fields(record)}
    assert fields <= told, f"docs/architecture.md does not tell of {sorted(fields - told)} in {entry}"


def test_the_exit_codes_are_those_of_the_errors() -> None:
    told = PAGE[PAGE.index("Exit codes:") :].partition("\n\n")[0]
    codes = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.OpsctlError)
    }
    assert {name for name, code in codes.items() if code == 2} == {"RunFileError", "UsageError"}
    assert codes["SlurmUnreachable"] == 1
    assert set(codes.values()) == {1, 2}
    main = (ROOT / "opsctl" / "cli" / "__init__.py").read_text()
    for code in (130, 141):
        assert str(code) in told and f"sys.exit({code})" in main
