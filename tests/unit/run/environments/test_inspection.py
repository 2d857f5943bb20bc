"""`env check` on real environments, with planted changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.environments.recipe import recipe_of
from tests.printed_json import printed
from tests.tiny_wheel import install, make_venv, make_wheel
from tests.unit.cli.called import opsctl
from tests.unit.run.environments.built_runs import built, find_uv, write_built_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run whose environment was built there, next to an unchanged copy."""
    folder = tmp_path_factory.mktemp("looking") / "run"
    (folder / "home").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as there:
        there.setenv("HOME", str(folder / "home"))
        find_uv(there)
        more = 'extensions = ["tiny:compile"]\narchitectures = ["8.0"]\nimports = ["tiny"]'
        built(write_built_run(folder, more=more))
    shutil.copytree(folder, folder.with_name("as-built"), symlinks=True)
    return folder


@pytest.fixture
def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedRun:
    """Return the run with its environment as built, whatever an earlier test changed."""
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("as-built"), folder, symlinks=True)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.delenv("OPSCTL_RUN", raising=False)
    monkeypatch.chdir(folder)
    find_uv(monkeypatch)
    return load_run_file(folder / "run.toml")


def venv(loaded: LoadedRun) -> Path:
    newest = recipe_of(loaded).places.newest()
    assert newest is not None
    return newest / "venv"


def another_version(loaded: LoadedRun) -> None:
    install(venv(loaded) / "bin" / "python", make_wheel(loaded.folder, "tiny", "1.1"))


def one_more(loaded: LoadedRun) -> None:
    install(venv(loaded) / "bin" / "python", make_wheel(loaded.folder, "more", "3"))


def other_files(loaded: LoadedRun) -> None:
    install(venv(loaded) / "bin" / "python", make_wheel(loaded.folder, "dep", "1.5", text="edited = 1\n"))


def one_less(loaded: LoadedRun) -> None:
    python = str(venv(loaded) / "bin" / "python")
    subprocess.run(["uv", "pip", "uninstall", "--quiet", "--python", python, "dep"], check=True)


def broken_import(loaded: LoadedRun) -> None:
    next(venv(loaded).glob("lib/python*/site-packages/tiny.py")).write_text("import gone\n")


def recompiled(loaded: LoadedRun) -> None:
    (venv(loaded).parent / "extensions" / "adam" / "adam.so").write_bytes(b"other code")


def no_script(loaded: LoadedRun) -> None:
    recipe_of(loaded).places.activate.unlink()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (another_version, "differs: tiny 1.0 -> 1.1"),
        (one_more, "more: more 3 is new"),
        (other_files, "differs: dep 1.5 has other files"),
        (one_less, "missing: dep 1.5 is gone"),
        (
            broken_import,
            "cannot be imported: tiny: ModuleNotFoundError: No module named 'gone'",
        ),
        (recompiled, "differs: kernel adam/adam.so"),
        (no_script, "cannot be seen: "),
    ],
)
def test_what_was_done_to_an_environment_is_what_its_check_says(
    loaded: LoadedRun, capsys: pytest.CaptureFixture[str], change: Callable[[LoadedRun], None], told: str
) -> None:
    change(loaded)
    assert opsctl("env", "check") == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(told.splitlines())
    assert all(line.startswith(begin) for line, begin in zip(lines, told.splitlines(), strict=True))


def rewrite(loaded: LoadedRun, old: str, new: str) -> None:
    loaded.path.write_text(loaded.path.read_text().replace(old, new))


@pytest.fixture
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small Python in place of the one that runs opsctl, whose many packages would take a minute."""
    python = make_venv(tmp_path / "another-python")
    monkeypatch.setattr(sys, "executable", str(python))
    return python


@pytest.mark.parametrize("says", ["", 'environment = "own.sh"\n'])
def test_where_the_next_step_starts_with_another_environment_that_one_reason_is_all_that_is_said(
    loaded: LoadedRun, another: Path, capsys: pytest.CaptureFixture[str], says: str
) -> None:
    (loaded.folder / "own.sh").write_text(f'export PATH="{another.parent}:$PATH"\n')
    rewrite(loaded, 'environment = "environment/activate.sh"\n', says)
    assert opsctl("env", "check") == 1
    said = capsys.readouterr()
    activate = recipe_of(loaded).places.activate
    (line,) = said.out.splitlines()
    assert line.startswith("not in use: ") and (f"{loaded.folder / 'own.sh'} " in line) == bool(says)
    assert line.endswith(f'[under [run] write environment = "{activate}"]')
    # A named file is used for the check, whatever was built.
    (loaded.folder / "pins.txt").write_text("tiny==1.0\n")
    assert opsctl("env", "check", "--against", "pins.txt") == 1
    assert "missing: tiny 1.0 is not installed" in capsys.readouterr().out.splitlines()

    (reason,) = [one for one in doctors(capsys) if one["name"] == "environment's lock"]
    assert f"not in use: {reason['text']} [{reason['todo']}]" == line

    rewrite(loaded, "[run]\n" + says, f'[run]\nenvironment = "{activate}"\n')  # as advised
    assert opsctl("env", "check") == 0


def doctors(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    opsctl("doctor", "--json")
    return printed("doctor", capsys.readouterr().out)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("another")
def test_before_anything_is_built_the_one_reason_says_so(loaded: LoadedRun, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(loaded.folder / "environment")
    rewrite(loaded, 'environment = "environment/activate.sh"\n', "")
    assert opsctl("env", "check") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert "[run] environment" in line and "[opsctl env build; " in line


def test_pins_and_an_attempts_record_are_what_it_is_compared_with(
    loaded: LoadedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    (loaded.folder / "pins.txt").write_text("tiny==1.0\ndep==1.5\n")
    shutil.copy(venv(loaded).parent / "environment.json", loaded.folder / "recorded.json")
    for name in ("pins.txt", "recorded.json"):
        assert opsctl("env", "check", "--against", name) == 0, capsys.readouterr().out
    another_version(loaded)
    capsys.readouterr()
    for name, told in (("pins.txt", "differs: tiny is 1.1, not 1.0"), ("recorded.json", "differs: tiny 1.0 -> 1.1")):
        assert opsctl("env", "check", "--against", name) == 1
        assert capsys.readouterr().out.splitlines() == [told]


def test_what_is_no_lock_is_refused_in_a_line(loaded: LoadedRun, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in (("half.json", b"{half"), ("binary", b"\xff\xfe"), ("gone", None)):
        if content is not None:
            (loaded.folder / name).write_bytes(content)
        assert opsctl("env", "check", "--against", name) == 1
        (refused,) = capsys.readouterr().err.splitlines()
        assert name in refused
