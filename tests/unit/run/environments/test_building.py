"""Environments really built by uv, from the tests' own wheels."""

from __future__ import annotations

import fcntl
import grp
import os
import stat
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.run.config.load import load_run_file
from opsctl.run.environments.building import planned
from opsctl.run.environments.query import ask
from opsctl.run.environments.recipe import BUILT, LOCK, recipe_of
from tests.tiny_run import write_run
from tests.tiny_wheel import make_wheel
from tests.unit.run.environments.built_runs import built, find_uv, seen_by, write_built_run

WHAT = "import tiny, dep; print(tiny.VERSION, dep.VERSION)"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    find_uv(monkeypatch)


def test_one_is_built_locked_by_hashes_and_named_and_can_be_built_again_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The user's settings of the installers have no effect.
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    loaded = write_built_run(tmp_path, 'imports = ["tiny"]')
    first = built(loaded)
    places = recipe_of(loaded).places
    assert first.is_new and places.newest() == first.folder
    assert seen_by(places.activate, WHAT) == "1.0 1.5"
    lock = (first.folder / LOCK).read_text()
    assert "tiny==1.0" in lock and "dep==1.5" in lock and lock.count("--hash=sha256:") == 2

    same = built(loaded)
    assert (same.folder, same.is_new) == (first.folder, False)

    again = built(loaded, offline=True, again=True)
    assert again.is_new and again.folder != first.folder
    assert seen_by(places.activate, WHAT) == "1.0 1.5"
    assert not (tmp_path / "elsewhere").exists()


def test_who_trains_keeps_the_environment_it_started_with(tmp_path: Path) -> None:
    loaded = write_built_run(tmp_path)
    first = built(loaded)
    make_wheel(tmp_path / "links", "tiny", "2.0", needs=("dep>=1",))
    second = built(loaded)  # another wheel there is another environment
    assert second.is_new
    assert seen_by(first.folder / "activate.sh", WHAT) == "1.0 1.5"
    assert seen_by(recipe_of(loaded).places.activate, WHAT) == "2.0 1.5"


@pytest.mark.parametrize(
    ("more", "requirements", "told"),
    [
        ('imports = ["no_such_module"]', "tiny\n", "No module named 'no_such_module'"),
        pytest.param(
            *('extensions = ["tiny:no_such_function"]', "tiny\n", "no attribute 'no_such_function'"),
            marks=pytest.mark.nightly,
        ),
        ("", "tiny==9.9\n", "9.9"),
    ],
)
def test_one_that_fails_says_why_in_a_line_and_what_is_in_use_stays(
    tmp_path: Path, more: str, requirements: str, told: str
) -> None:
    loaded = write_built_run(tmp_path)
    first = built(loaded)
    loaded = write_built_run(tmp_path, more)
    (tmp_path / "requirements.txt").write_text(requirements)
    with pytest.raises(OpsctlError, match=told) as refused:
        built(loaded)
    assert "\n" not in str(refused.value)
    places = recipe_of(loaded).places
    assert places.newest() == first.folder and seen_by(places.activate, WHAT) == "1.0 1.5"
    (tmp_path / "requirements.txt").write_text("tiny\n")
    done = built(write_built_run(tmp_path), again=True)
    assert {one for one in places.built.iterdir() if (one / BUILT).is_file()} == {first.folder, done.folder}
    assert len(list(places.built.iterdir())) == 2  # the failed build is removed


def test_extensions_are_compiled_ahead_for_the_runs_architectures_where_only_this_environment_looks(
    tmp_path: Path,
) -> None:
    loaded = write_built_run(tmp_path, more='extensions = ["tiny:compile"]\narchitectures = ["8.0", "9.0"]')
    done = built(loaded)
    assert (done.folder / "extensions" / "adam" / "adam.so").read_bytes() == b"for 8.0;9.0"
    found = ask(recipe_of(loaded).places.activate, {}).found
    assert found is not None and list(found.kernels) == ["adam/adam.so"]
    assert found.variables["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"


def test_two_builds_at_once_are_one(tmp_path: Path) -> None:
    loaded = write_built_run(tmp_path)
    built(loaded)
    lock = recipe_of(loaded).places.lock
    child = os.fork()
    if not child:
        with lock.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.kill(os.getpid(), 19)  # stopped, with the lock
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    try:
        with pytest.raises(OpsctlError, match=f"{lock}|{child}"):
            built(loaded, again=True)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_with_a_group_it_is_the_groups_and_nobody_elses(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    path = write_built_run(tmp_path).path
    path.write_text(path.read_text().replace("[run]\n", f'[run]\ngroup = "{group}"\n'))
    loaded = load_run_file(path)
    done = built(loaded)
    assert "umask 0007" in (done.folder / "activate.sh").read_text()
    for at, folders, files in os.walk(recipe_of(loaded).places.folder):
        for name in (*folders, *files):
            mode = (Path(at) / name).lstat().st_mode
            if not stat.S_ISLNK(mode) and "downloads" not in at:
                assert mode & 0o040 and not mode & 0o007, (at, name, oct(mode))


def test_a_dry_run_says_every_step_and_changes_nothing(tmp_path: Path) -> None:
    loaded = write_built_run(tmp_path, 'extensions = ["cpu_adam"]')
    before = sorted(tmp_path.rglob("*"))
    words = "\n".join(planned(recipe_of(loaded), offline=False, again=False))
    assert "uv pip compile" in words and "compile cpu_adam" in words
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('index = "https://me:secret@host/simple"', "index.*password"),
        ('architectures = ["sm_80"]', r'architectures = "sm_80": '),
        ('imports = ["os; import x"]', "imports = "),
        ('requirements = ["--index-url=x"]', "requirements = "),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built(tmp_path: Path, line: str, told: str) -> None:
    path = write_run(tmp_path)
    path.write_text(f"{path.read_text()}\n[environment]\n{line}\n")
    with pytest.raises(RunFileError, match=told) as refused:
        load_run_file(path)
    assert "secret" not in str(refused.value)


def test_without_requirements_there_is_nothing_to_build_by(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"\[environment\]"):
        recipe_of(load_run_file(write_run(tmp_path)))
    with pytest.raises(RunFileError, match=r"missing\.txt: No such file"):
        loaded = write_built_run(tmp_path)
        path = loaded.path
        path.write_text(path.read_text().replace("requirements.txt", "missing.txt"))
        recipe_of(load_run_file(path))
