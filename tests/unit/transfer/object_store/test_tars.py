from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.store import open_store
from opsctl.transfer.object_store.tars import INDEX, check_tar, get_members, put_tar, read_index
from opsctl.transfer.object_store.types import ANYTHING, Expected, FileFault, StoreError
from tests.s3_server import Fault, Proxy
from tests.unit.transfer.object_store.test_folder import files_of, flip, names_in, same


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, there: Path) -> str:
    """A store of each kind."""
    if request.param == "folder":
        return str(there)
    request.getfixturevalue("proxy")
    return f"s3://{request.getfixturevalue('bucket')}/tars"


def test_the_tar_is_one_for_tar_itself(here: Path, there: Path, tmp_path: Path) -> None:
    (here / os.fsdecode(b"\xff.log")).write_text("x")
    with open_store(str(there)) as store:
        put_tar(store, here, files_of(here), "step 1.tar").raise_faults()
    assert set(names_in(there)) == {"step 1.tar", f"step 1.tar{INDEX}"}
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-xf", there / "step 1.tar", "-C", out], check=True)
    assert same(here, out)


def test_single_members_are_fetched_by_their_ranges(here: Path, url: str, tmp_path: Path) -> None:
    back = tmp_path / "back"
    back.mkdir()
    with open_store(url) as store:
        moved = put_tar(store, here, files_of(here), "run/step.tar").moved
        read_asked: list[tuple[str, int, int | None]] = []
        read = store.backend.read

        def noted(name: str, begin: int, end: int | None) -> Iterator[memoryview]:
            read_asked.append((name, begin, end))
            yield from read(name, begin, end)

        store.backend.read = noted  # type: ignore[method-assign]
        get_members(store, "run/step.tar", back, ["a b", "layer_01/shard 1.pt"]).raise_faults()
        tar_ranges = [(begin, end) for name, begin, end in read_asked if name == "run/step.tar"]
        assert sum((end or 1 << 60) - begin for begin, end in tar_ranges) == 1000 + 5000
        assert set(files_of(back)) == {"a b", "layer_01/shard 1.pt"}
        get_members(store, "run/step.tar", back).raise_faults()
        assert same(here, back)
        assert read_index(store, "run/step.tar").expected() == {
            name: Expected(one.bytes, one.xxh64) for name, one in moved.items()
        }
        assert not check_tar(store, "run/step.tar").faults


def test_it_is_not_sent_again(here: Path, url: str) -> None:
    with open_store(url) as store:
        put_tar(store, here, files_of(here), "x.tar").raise_faults()
        assert all(one.was_there for one in put_tar(store, here, files_of(here), "x.tar").moved.values())


def test_a_flipped_bit_is_found_in_its_member(here: Path, there: Path) -> None:
    with open_store(str(there)) as store:
        put_tar(store, here, {"a b": ANYTHING, "large.bin": ANYTHING}, "x.tar").raise_faults()
        flip(there / "x.tar")
        assert set(check_tar(store, "x.tar").faults) == {"large.bin"}
        assert not check_tar(store, "x.tar", ["a b"]).faults
        os.truncate(there / "x.tar", 2000)
        assert set(check_tar(store, "x.tar").faults) == {"x.tar"}


def test_a_member_that_changes_leaves_neither_tar_nor_index(here: Path, there: Path) -> None:
    def reached(_: int) -> None:
        os.truncate(here / "manifest.json", 1)

    files = {"large.bin": ANYTHING, "manifest.json": ANYTHING}
    with open_store(str(there)) as store:
        outcome = put_tar(store, here, files, "x.tar", Flow(reached=reached))
        assert (
            [*outcome.faults] == ["x.tar"]
            and "'manifest.json' shrank to 1 bytes" in outcome.faults["x.tar"]
            and not names_in(there)
        )
        wrong = {"a b": Expected(1000, "0" * 16)}
        assert "'a b' " in put_tar(store, here, wrong, "x.tar").faults["x.tar"]
    assert not names_in(there)


def test_a_tar_whose_index_never_came_is_none(here: Path, proxy: Proxy, bucket: str) -> None:
    proxy.faults.append(Fault("^PUT .*index", "answer", 100, 403, "AccessDenied"))
    with open_store(f"s3://{bucket}") as store:
        with pytest.raises(StoreError, match="AccessDenied"):
            put_tar(store, here, files_of(here), "x.tar")
        with pytest.raises(FileFault, match="is not in"):
            read_index(store, "x.tar")


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"\xff", b'{"bytes":1,"xxh64":"0","members":{"../x":{"offset":0,"bytes":1,"xxh64":"0"}}}'],
)
def test_a_damaged_index_is_refused(there: Path, text: bytes) -> None:
    (there / f"x.tar{INDEX}").write_bytes(text)
    with open_store(str(there)) as store, pytest.raises(FileFault):
        read_index(store, "x.tar")
