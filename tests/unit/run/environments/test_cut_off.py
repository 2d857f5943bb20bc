"""Builds that are killed, run out of disk, or are in a folder with an odd name: their remains, and the next build."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from uv import find_uv_bin

from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.run.environments import building
from opsctl.run.environments.query import Asked, ask
from opsctl.run.environments.recipe import recipe_of
from tests.killed_in_python import killed_at_every_step
from tests.unit.run.environments.built_runs import built, find_uv, seen_by, write_built_run

WHAT = "import tiny, dep; print(tiny.VERSION, dep.VERSION)"
#: What may lie in an environment folder; `lock` is the builders'.
PLACES = {"built", "current", "activate.sh", "downloads", "lock"}
#: uv, which dies with anyone who called it once it has done its work but for the last of it.
DYING_UV = """#!/bin/bash
count=$(($(cat "$HOME/calls") + 1))
echo $count >"$HOME/calls"
"{uv}" "$@" || exit
if [ $count = "$(cat "$HOME/die_at")" ]; then
    find "$HOME/../environment/built" -newer "$HOME/calls" -type f -delete
    kill -9 $PPID
fi
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    find_uv(monkeypatch)
    return tmp_path / "home"


def test_one_that_is_killed_in_any_of_its_commands_is_never_named_and_the_next_build_is_whole(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turn: half the virtual environment, half the versions, half the packages, half an extension."""
    loaded = write_built_run(tmp_path, more='extensions = ["tiny:kill_once"]')
    places = recipe_of(loaded).places
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text(DYING_UV.format(uv=find_uv_bin()))
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    for die_at in (1, 2, 3, 0):
        (home / "calls").write_text("0")
        (home / "die_at").write_text(str(die_at))
        child = os.fork()
        if not child:
            built(loaded)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 9, die_at
        assert places.newest() is None and not places.activate.exists()
        assert len(list(places.built.iterdir())) == 1  # the remains of the previous build are removed
    done = built(loaded)
    assert [done.folder] == list(places.built.iterdir()) and seen_by(places.activate, WHAT) == "1.0 1.5"


def test_one_that_is_killed_at_any_step_of_its_own_names_only_what_is_whole_and_the_next_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installers' results are copied from one build: the test kills at each step around them."""
    loaded = write_built_run(tmp_path)
    places = recipe_of(loaded).places
    first = built(loaded).folder
    shutil.copytree(first / "venv", tmp_path / "venv", symlinks=True)
    found = ask(places.activate, {}).found
    assert found is not None

    def copied(_recipe: object, folder: Path, *_: object) -> list[tuple[str, tuple[str, ...]]]:
        return [("copy it", ("/bin/cp", "-a", str(tmp_path / "venv"), str(folder / "venv")))]

    def asked(script: Path, _: object) -> Asked:
        assert (script.parent / "venv" / "bin" / "python").exists()
        return Asked(msgspec.structs.replace(found, executable=str(script.parent / "venv" / "bin" / "python")))

    monkeypatch.setattr(building, "stages", copied)
    monkeypatch.setattr(building, "ask", asked)
    deaths = 0
    for _ in killed_at_every_step(lambda: built(loaded, again=True)):
        deaths += 1
        newest = places.newest()
        assert newest is not None and (newest / "venv" / "bin" / "python").exists()
        assert (newest / "environment.json").exists() and (newest / "activate.sh").exists()
        for one in places.built.iterdir():  # else the next build would die while removing this, not one step further
            if not (one / "built.json").exists():
                shutil.rmtree(one)
    assert deaths >= 8
    done = built(loaded, again=True)
    assert places.newest() == done.folder
    assert {one.name for one in places.folder.iterdir()} <= PLACES
    assert all((one / "built.json").exists() for one in places.built.iterdir())


@pytest.fixture
def small() -> Iterator[Path]:
    """Return a file system of 3 MiB."""
    if os.getuid():
        pytest.skip("mounting needs root")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def test_on_a_full_disk_what_is_in_use_stays_and_the_next_build_has_room_again(tmp_path: Path, small: Path) -> None:
    """Full while it installs, and full when only our own last files are to be written."""
    first = built(write_built_run(tmp_path, more=f'folder = "{small}/env"'))
    for more in ("", 'extensions = ["tiny:fill_the_disk"]'):
        loaded = write_built_run(tmp_path, more=f'folder = "{small}/env"\n{more}')
        if not more:
            filler = small / "filler"
            with filler.open("wb", buffering=0) as file:
                while file.tell() < 3 << 20 and _written(file.fileno()):
                    pass
        with pytest.raises(OpsctlError, match=r"(?i)no space left") as refused:
            built(loaded, again=True)
        assert "\n" not in str(refused.value)
        (small / "filler").unlink(missing_ok=True)
        places = recipe_of(loaded).places
        assert places.newest() == first.folder
    done = built(write_built_run(tmp_path, more=f'folder = "{small}/env"'), again=True)
    assert {one.name for one in places.built.iterdir()} == {first.folder.name, done.folder.name}
    assert seen_by(places.activate, WHAT) == "1.0 1.5"


def _written(fd: int) -> bool:
    try:
        return os.write(fd, bytes(4096)) > 0
    except OSError:
        return False


@pytest.mark.parametrize("name", ["-a b'c\"d", "$(touch hacked);&*é"])
def test_a_folder_with_an_odd_name_has_an_environment_like_any_other(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    loaded = write_built_run(folder, more='extensions = ["tiny:compile"]\narchitectures = ["8.0"]\nimports = ["tiny"]')
    done = built(loaded)
    assert seen_by(recipe_of(loaded).places.activate, WHAT) == "1.0 1.5"
    assert (done.folder / "extensions" / "adam" / "adam.so").read_bytes() == b"for 8.0"
    assert {one.name for one in tmp_path.iterdir()} == {name, "home"}


@pytest.mark.parametrize(
    ("name", "told"),
    [("two\nlines", r"two\\nlines"), ("a:b", "a:b.*colon")],
)
def test_a_name_that_no_script_or_path_can_hold_is_refused_before_anything_is_made(
    tmp_path: Path, name: str, told: str
) -> None:
    loaded = write_built_run(tmp_path / name)
    with pytest.raises((OpsctlError, RunFileError), match=told) as refused:
        built(loaded)
    assert "\n" not in str(refused.value)
    assert not list(recipe_of(loaded).places.built.glob("*"))
