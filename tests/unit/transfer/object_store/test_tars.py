from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import xxhash

from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.tars import INDEX, put_tar, read_index
from opsctl.transfer.object_store.types import ANYTHING, Expected, FileFault, StoreError
from opsctl.transfer.object_store.urls import open_store
from tests.s3_server import Fault, Proxy
from tests.unit.transfer.object_store.test_folder import files_of, names_in, same


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
        put_tar(store, here, files_of(here), "step 1.tar")
    assert set(names_in(there)) == {"step 1.tar", f"step 1.tar{INDEX}"}
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-xf", there / "step 1.tar", "-C", out], check=True)
    assert same(here, out)


def test_single_members_are_read_by_their_ranges(here: Path, url: str) -> None:
    with open_store(url) as store:
        put_tar(store, here, files_of(here), "run/step.tar")
        index = read_index(store, "run/step.tar")
        assert {name: one.bytes for name, one in index.expected().items()} == {
            name: (here / name).stat().st_size for name in files_of(here)
        }
        for name, one in index.expected().items():
            at = index.member(name).offset
            assert store.read("run/step.tar", at, at + (one.bytes or 0)) == (here / name).read_bytes()
            assert one.xxh64 == xxhash.xxh64((here / name).read_bytes()).hexdigest()


def test_it_is_not_sent_again(here: Path, url: str) -> None:
    with open_store(url) as store:
        assert not put_tar(store, here, files_of(here), "x.tar").was_there
        assert put_tar(store, here, files_of(here), "x.tar").was_there


def test_a_member_that_changes_leaves_neither_tar_nor_index(here: Path, there: Path) -> None:
    def reached(_: int) -> None:
        os.truncate(here / "manifest.json", 1)

    files = {"large.bin": ANYTHING, "manifest.json": ANYTHING}
    with open_store(str(there)) as store:
        with pytest.raises(FileFault, match=r"manifest\.json' shrank to 1 bytes"):
            put_tar(store, here, files, "x.tar", Flow(reached=reached))
        with pytest.raises(FileFault, match="'a b' "):
            put_tar(store, here, {"a b": Expected(1000, "0" * 16)}, "x.tar")
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
