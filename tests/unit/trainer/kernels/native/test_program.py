"""`python -m trainer.kernels.native`: what it builds, how it says what is there, its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.runner import needs_gxx
from trainer.kernels.native import __main__ as program
from trainer.kernels.native import inventory
from trainer.kernels.native.artifacts import library_artifact, own_levels
from trainer.kernels.native.toolchains import CompilerError

LEVEL = own_levels()[0]


@pytest.fixture(autouse=True)
def _one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "every_level", lambda: (LEVEL,))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """(exit code, name -> what is printed of it, stderr)."""
    code = program.main([*words, "--json"])
    said = capsys.readouterr()
    return code, {one["name"]: one for one in json.loads(said.out)["kernels"]["artifacts"]}, said.err


def states(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: one["state"] for name, one in found.items()}


@needs_gxx
def test_what_was_built_is_listed_and_holds_when_it_is_checked(
    cache: Path, csrc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, _ = run(capsys, "list")
    assert (code, states(found)) == (0, {f"operations-{LEVEL}": "missing", f"data-{LEVEL}": "missing"})
    assert run(capsys, "check")[0] == 1
    code, found, _ = run(capsys, "build", "--jobs", "2")
    assert (code, states(found)) == (0, {f"operations-{LEVEL}": "built", f"data-{LEVEL}": "built"})
    code, found, _ = run(capsys, "check", "--here")
    assert (code, states(found)) == (0, {f"operations-{LEVEL}": "ok", f"data-{LEVEL}": "ok"})
    one = found[f"data-{LEVEL}"]
    assert one["used_here"] and one["folder"].startswith(str(cache)) and one["compiler"]


@needs_gxx
def test_what_is_stale_damaged_or_not_to_be_trusted_is_told_apart(
    cache: Path, csrc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "build")
    data = library_artifact("data", LEVEL)
    assert data
    library = next(cache.glob("data-*")) / "libdata.so"
    whole = library.read_bytes()
    library.write_bytes(whole[:-1])
    code, found, _ = run(capsys, "check")
    assert code == 1 and found[f"data-{LEVEL}"]["state"] == "damaged"
    assert "libdata.so" in found[f"data-{LEVEL}"]["why"]
    library.write_bytes(whole)
    library.chmod(0o666)
    assert run(capsys, "check")[1][f"data-{LEVEL}"]["state"] == "untrusted"
    library.chmod(0o644)
    assert run(capsys, "check")[1][f"data-{LEVEL}"]["state"] == "ok"
    (csrc / "data" / "extra.h").write_text("#define EXTRA 1\n")
    code, found, _ = run(capsys, "check")
    assert code == 1 and found[f"data-{LEVEL}"]["state"] == "stale"


@needs_gxx
def test_a_library_that_cannot_be_loaded_fails_the_check(
    cache: Path, csrc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (csrc / "data" / "adding.cpp").write_text('extern "C" int nowhere();\nint add() { return nowhere(); }\n')
    run(capsys, "build")
    code, found, said = run(capsys, "check")
    assert code == 1 and found[f"data-{LEVEL}"]["state"] == "failed"
    assert re.search(rf"^opsctl: data-{LEVEL}: .*undefined symbol: nowhere$", said, re.MULTILINE)


@needs_gxx
def test_what_one_lacks_keeps_no_other_from_being_built(
    cache: Path, csrc: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (csrc / "cuda" / "kernel.cu").write_text("")

    def none(architecture: str) -> None:
        raise CompilerError("no CUDA compiler here")

    monkeypatch.setattr("trainer.kernels.native.building.cuda_compiler", none)
    code, found, said = run(capsys, "build", "--arch", "8.0")
    assert code == 1
    assert states(found) == {f"operations-{LEVEL}": "built", f"data-{LEVEL}": "built", "cuda-sm_80": "failed"}
    assert said == "opsctl: cuda-sm_80: no CUDA compiler here\n"


@pytest.mark.parametrize("text", ["8.0", "80", "sm_80"])
def test_an_architecture_is_taken_as_people_write_it(
    cache: Path, csrc: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (csrc / "cuda" / "kernel.cu").write_text("")
    assert "cuda-sm_80" in run(capsys, "list", "--arch", text)[1]


def test_what_is_no_architecture_is_wrong_usage(cache: Path, csrc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["list", "--arch", "ampere"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("opsctl: --arch: 'ampere'") and said.count("\n") == 1


def test_people_get_a_line_for_each_and_where_it_all_is(
    cache: Path, csrc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [
        [f"operations-{LEVEL}", "missing"],
        [f"data-{LEVEL}", "missing"],
    ]
    assert lines[-1] == f"in {cache}"
