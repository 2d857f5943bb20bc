from __future__ import annotations

import errno
import multiprocessing
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.kernels.native import cache as cache_module
from trainer.kernels.native.artifacts import Artifact
from trainer.kernels.native.cache import (
    CacheError,
    cache_folders,
    damaged_files,
    find,
    find_by,
    others_of,
    put,
)
from trainer.kernels.native.libraries import NotBuilt, cubins_for, load_library

ARTIFACT = Artifact("data-x86-64-v3", (), ("-O2",), "0123456789abcdef01234567")
Make = Callable[[Path], dict[str, dict[str, Any]]]


def making(text: str = "library") -> Make:
    def make(folder: Path) -> dict[str, dict[str, Any]]:
        (folder / "libdata.so").write_text(text)
        return {}

    return make


def test_what_was_put_is_found_with_all_that_is_known_of_it(cache: Path) -> None:
    assert find(ARTIFACT) is None
    built = put(ARTIFACT, "g++ 12", "2.13", making())
    assert find(ARTIFACT) == built == find_by(ARTIFACT, "g++ 12")
    assert (built.folder / "libdata.so").read_text() == "library"
    assert (built.compiler, built.torch, damaged_files(built)) == ("g++ 12", "2.13", [])
    assert [one.name for one in cache.iterdir()] == [built.folder.name]


def test_another_key_is_not_found_and_told_as_an_older_one(cache: Path) -> None:
    built = put(ARTIFACT, "g++ 12", "2.13", making())
    other = Artifact(ARTIFACT.name, (), (), "f" * 24)
    assert find(other) is None
    assert others_of(other.name, other.key) == [built.folder]
    assert others_of(ARTIFACT.name, ARTIFACT.key) == []


def test_of_several_compilers_the_newest_is_found_and_each_by_its_name(cache: Path) -> None:
    first, second = (put(ARTIFACT, compiler, "2.13", making(compiler)) for compiler in ("g++ 12", "g++ 14"))
    os.utime(first.folder, ns=(10**18, 10**18))
    os.utime(second.folder, ns=(2 * 10**18, 2 * 10**18))
    assert find(ARTIFACT) == second
    assert find_by(ARTIFACT, "g++ 12") == first
    assert find_by(ARTIFACT, "g++ 13") is None


def test_folders_are_searched_in_their_order_and_the_first_is_built_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    monkeypatch.setenv("OPSCTL_KERNELS_CACHE", str(shared))
    built = put(ARTIFACT, "g++ 12", "2.13", making())
    monkeypatch.setenv("OPSCTL_KERNELS_CACHE", f"{own}:{shared}")
    assert find(ARTIFACT) == built
    mine = put(ARTIFACT, "g++ 14", "2.13", making())
    assert mine.folder.parent == own
    assert find(ARTIFACT) == mine


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"OPSCTL_KERNELS_CACHE": "~/kernels"}, "/home/me/kernels"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/opsctl/kernels"),
        ({}, "/home/me/.cache/opsctl/kernels"),
    ],
)
def test_the_folder_is_the_variables_else_in_the_users_cache(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPSCTL_KERNELS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache_folders() == (Path(folder),)


def test_a_file_that_changed_is_told_and_facts_that_are_no_facts_are_refused(cache: Path) -> None:
    built = put(ARTIFACT, "g++ 12", "2.13", making())
    (built.folder / "libdata.so").write_text("other")
    assert damaged_files(built) == ["libdata.so"]
    (built.folder / "libdata.so").unlink()
    with pytest.raises(CacheError, match=rf"{built.folder}.*No such file"):
        find(ARTIFACT)
    (built.folder / "built.json").write_text("{}")
    with pytest.raises(CacheError, match=str(built.folder)):
        find(ARTIFACT)


def test_what_everybody_can_write_is_not_loaded(cache: Path) -> None:
    built = put(ARTIFACT, "g++ 12", "2.13", making())
    for place in (built.folder / "libdata.so", built.folder, cache):
        mode = place.stat().st_mode & 0o7777
        place.chmod(mode | 0o002)
        with pytest.raises(CacheError, match=rf"{place}\b(?!/)"):
            find(ARTIFACT)
        place.chmod(mode)
    assert find(ARTIFACT) == built


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_is_somebody_elses_is_not_loaded_unless_the_folder_is_their_groups(cache: Path) -> None:
    built = put(ARTIFACT, "g++ 12", "2.13", making())
    stranger = pwd.getpwnam("nobody")
    os.chown(built.folder / "libdata.so", stranger.pw_uid, stranger.pw_gid)
    with pytest.raises(CacheError, match=r"libdata\.so .*\bnobody\b"):
        find(ARTIFACT)
    os.chown(cache, 0, stranger.pw_gid)
    with pytest.raises(CacheError, match=r"libdata\.so .*\bnobody\b"):
        find(ARTIFACT)
    cache.chmod(0o775)
    assert find(ARTIFACT) == built


def test_what_a_group_can_write_is_loaded_where_the_folder_is_that_groups_alone(cache: Path) -> None:
    built = put(ARTIFACT, "g++ 12", "2.13", making())
    built.folder.chmod(0o775)
    assert os.geteuid() != 0 or find(ARTIFACT) == built  # root's own group is no other user's
    if os.geteuid() == 0:
        os.chown(built.folder, 0, pwd.getpwnam("nobody").pw_gid)
        with pytest.raises(CacheError, match=rf"{built.folder} .*\bnogroup\b"):
            find(ARTIFACT)


def put_slowly(folder: str, started: Any) -> None:
    def make(beside: Path) -> dict[str, dict[str, Any]]:
        (beside / "libdata.so").write_text("half")
        started.set()
        time.sleep(60)
        return {}

    os.environ["OPSCTL_KERNELS_CACHE"] = folder
    put(ARTIFACT, "g++ 12", "2.13", make)


def test_a_build_that_was_killed_leaves_nothing_that_is_taken_for_whole(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    builder = context.Process(target=put_slowly, args=(str(cache), started))
    builder.start()
    assert started.wait(60)
    os.kill(builder.pid or 0, signal.SIGKILL)
    builder.join(60)
    (left,) = cache.glob(".tmp-*")
    assert find(ARTIFACT) is None
    put(ARTIFACT, "g++ 12", "2.13", making())
    assert find(ARTIFACT) and left.exists(), "another process may still build there"
    os.utime(left, (0, 0))
    put(ARTIFACT, "g++ 13", "2.13", making())
    assert not list(cache.glob(".tmp-*"))


def test_who_comes_second_takes_what_the_first_has_put(cache: Path) -> None:
    def late(folder: Path) -> dict[str, dict[str, Any]]:
        put(ARTIFACT, "g++ 12", "2.13", making("first"))
        return making("second")(folder)

    built = put(ARTIFACT, "g++ 12", "2.13", late)
    assert (built.folder / "libdata.so").read_text() == "first"
    assert not list(cache.glob(".tmp-*"))


def test_a_build_that_fails_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path) -> dict[str, dict[str, Any]]:
        (folder / "libdata.so").write_text("half")
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        put(ARTIFACT, "g++ 12", "2.13", fail)
    assert list(cache.iterdir()) == []


def test_looking_where_nothing_is_built_takes_no_compiler_and_little_else(cache: Path) -> None:
    shutil.rmtree(cache, ignore_errors=True)
    code = (
        "import sys\nfrom trainer.kernels.native.libraries import operations, data\n"
        "from trainer.kernels.native.libraries import cubins_for\n"
        "print(operations(), data(), cubins_for((8, 0)))\n"
        "print(sorted({'torch', 'numpy', 'subprocess'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr
    assert not cache.exists()


@pytest.mark.parametrize("named", ["~nosuchuser/kernels", None])
def test_a_home_folder_that_is_not_there_is_told_in_one_line(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPSCTL_KERNELS_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    if named:
        monkeypatch.setenv("OPSCTL_KERNELS_CACHE", named)
    with pytest.raises(CacheError, match=r"home folder.*OPSCTL_KERNELS_CACHE$"):
        cache_folders()
    assert isinstance(load_library("data"), NotBuilt) and isinstance(cubins_for((8, 0)), NotBuilt)


def test_what_is_built_under_a_closed_umask_is_for_all_who_may_use_the_cache(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o755)
    before = os.umask(0o077)
    try:
        built = put(ARTIFACT, "g++ 12", "2.13", making())
    finally:
        os.umask(before)
    assert [one.stat().st_mode & 0o777 for one in (built.folder, built.folder / "libdata.so")] == [0o755, 0o644]


def test_what_this_user_may_not_read_is_not_called_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(ARTIFACT, "g++ 12", "2.13", making())

    def refused(path: Path, _: int) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(cache_module, "read_plain", refused)  # root may read all
    with pytest.raises(CacheError, match=rf"{cache}(?!.*damaged).* OPSCTL_KERNELS_CACHE"):
        find(ARTIFACT)


def test_a_cache_of_which_nothing_would_be_loaded_is_refused_before_anything_is_made(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)

    def never(_: Path) -> dict[str, dict[str, Any]]:
        raise AssertionError("compiled")

    with pytest.raises(CacheError, match=f"{cache} .*OPSCTL_KERNELS_CACHE"):
        put(ARTIFACT, "g++ 12", "2.13", never)
    assert not list(cache.iterdir())


def test_a_disk_that_is_full_is_told_with_the_folder(cache: Path) -> None:
    def full(_: Path) -> dict[str, dict[str, Any]]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=f"No space left.*'{cache}'"):
        put(ARTIFACT, "g++ 12", "2.13", full)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_in_a_container_without_root_unknown_folders_are_believed_above_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = int(Path("/proc/sys/kernel/overflowuid").read_text())
    above = tmp_path / "above"
    cache = above / "cache"
    cache.mkdir(parents=True)
    monkeypatch.setenv("OPSCTL_KERNELS_CACHE", str(cache))
    built = put(ARTIFACT, "g++ 12", "2.13", making())
    os.chown(above, unknown, 0)
    with pytest.raises(CacheError, match=rf"{above} .*\bnobody\b"):
        find(ARTIFACT)
    monkeypatch.setattr(cache_module, "_uid_of_the_unknown", lambda: unknown)
    assert find(ARTIFACT) == built
    os.chown(built.folder, unknown, 0)
    with pytest.raises(CacheError, match=rf"{built.folder} .*\bnobody\b.*container"):
        find(ARTIFACT)


def test_in_a_user_namespace_root_is_told_from_the_unknown(cache: Path) -> None:
    assert (cache_module._uid_of_the_unknown() is None) == any(
        row.split()[1] == "0" for row in Path("/proc/self/uid_map").read_text().splitlines()
    )
    asked = "from trainer.kernels.native.cache import _uid_of_the_unknown as asked; print(asked())"
    inside = ["unshare", "--user", sys.executable, "-c", asked]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")
    assert done.stdout.strip() == Path("/proc/sys/kernel/overflowuid").read_text().strip()
