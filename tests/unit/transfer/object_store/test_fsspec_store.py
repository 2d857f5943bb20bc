"""GCS through the emulator that there is, and URLs that name no store."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from opsctl.transfer.object_store.sources import file_source
from opsctl.transfer.object_store.store import held_folder
from opsctl.transfer.object_store.types import ANYTHING, Access, Expected, FileFault, StoreError
from opsctl.transfer.object_store.urls import open_store
from tests.free_port import free_port
from tests.s3_server import Fault, Proxy, proxied
from tests.unit.transfer.object_store.test_folder import files_of, get, names_in, same
from trainer.formats.distribution import install_command

_EMULATOR = """
import sys
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="bucket1")
server.run()
"""


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    """The endpoint of a GCS emulator with the bucket `bucket1`."""
    port = free_port()
    words = [sys.executable, "-c", _EMULATOR, str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            endpoint, ends_at = f"http://127.0.0.1:{port}", time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(f"{endpoint}/", timeout=5).close()
                    break
                except OSError:
                    assert time.monotonic() < ends_at
                    time.sleep(0.05)
            yield endpoint
        finally:
            process.kill()


@pytest.fixture
def gcs(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Yield what stands before the emulator, with the client's own waits between two tries left out."""

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr("gcsfs.retry.asyncio", SimpleNamespace(sleep=at_once))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with proxied(emulator) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        yield proxy


@pytest.fixture
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store."""
    place = request.node.nodeid.rpartition("::")[2].replace("[", "-").replace("]", "")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("emulator"))
    return f"gs://bucket1/{place}"


def test_every_file_arrives_and_comes_back_whatever_its_name(here: Path, url: str, tmp_path: Path) -> None:
    back = tmp_path / "back"
    back.mkdir()
    with open_store(url) as store:
        outcome = store.put(here, files_of(here), "run/step")
        assert not outcome.faults
        known = {name: Expected(one.bytes, one.xxh64) for name, one in outcome.moved.items()}
        assert set(store.list("run/step")) == set(known)
        assert all(one.was_there for one in store.put(here, files_of(here), "run/step").moved.values())
        get(store, known, back, "run/step").raise_faults()
        assert not store.check(known, "run/step").faults
        assert store.read("run/step/large.bin", 5, 25) == (here / "large.bin").read_bytes()[5:25]
        store.remove(known, "run/step")
        assert not store.list("run")
        with pytest.raises(FileFault, match="is not in"):
            store.read("run/step/a b")
    assert same(here, back)


def test_a_checksum_of_the_stores_own_proves_what_is_there_and_nothing_else_does(here: Path, url: str) -> None:
    names = {name: Expected(grows=True) for name in ("a b", "large.bin", "manifest.json")}
    with open_store(url) as store:
        moved = store.put(here, names, "run").moved
        marks = {name: far.mark for name, far in store.list("run").items()}
        assert all(marks.values())

        def proven() -> set[str]:
            with held_folder(here) as held:
                found = {name: store.proves(f"run/{name}", file_source(held, name, Expected())) for name in moved}
            return {name for name, xxh64 in found.items() if xxh64 == moved[name].xxh64}

        assert proven() == set(moved)
        was = (here / "a b").read_bytes()
        (here / "a b").write_bytes(b"!" * len(was))
        store.put(here, {"a b": Expected(grows=True)}, "run").raise_faults()
        (here / "a b").write_bytes(was)
        assert proven() == set(moved) - {"a b"}
        assert store.list("run")["a b"].mark != marks["a b"]


def test_what_is_not_right_leaves_nothing(here: Path, url: str) -> None:
    with open_store(url) as store:
        assert store.put(here, {"a b": Expected(1000, "0" * 16)}, "x").faults
        assert not store.list("x")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("backup", "'backup' "),
        ("nonsense://x/y", "nonsense://"),
        ("s3://", "'s3://' "),
        ("file://host/x", "'file://host/x' "),
        ("s3://AKID:verysecret@bucket/x", "password"),
        ("gs://bucket/x?token=verysecret", "password"),
    ],
)
def test_what_names_no_store_is_refused_in_a_line_without_its_secret(url: str, told: str) -> None:
    with pytest.raises(StoreError, match=told) as caught:
        open_store(url)
    assert "verysecret" not in str(caught.value) and "\n" not in str(caught.value)


_OPEN = """
import sys
sys.modules[sys.argv[2]] = None
from opsctl.transfer.object_store.urls import open_store
open_store(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("url", "package", "told"),
    [
        ("s3://b/x", "s3fs", install_command("s3")),
        ("gs://b/x", "gcsfs", install_command("gcs")),
    ],
)
def test_a_missing_extra_is_refused_by_name(url: str, package: str, told: str) -> None:
    done = subprocess.run([sys.executable, "-c", _OPEN, url, package], capture_output=True, text=True, timeout=60)
    assert (
        done.stderr.splitlines()[-1].startswith(f"opsctl.transfer.object_store.types.StoreError: {url} ")
        and told in done.stderr.splitlines()[-1]
    )


def test_a_bucket_that_is_not_there_is_an_error_in_a_line(
    here: Path, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    with open_store("gs://never-made/x") as store, pytest.raises(StoreError, match=r"^gs://never-made/x: [^\n]+$"):
        store.put(here, {"a b": ANYTHING})
    assert names_in(here)


def there(emulator: str, name: str) -> bytes:
    """Return what the emulator has under a name of the bucket, asked without a client."""
    with urllib.request.urlopen(f"{emulator}/download/storage/v1/b/bucket1/o/{quote(name, '')}?alt=media") as answer:
        return bytes(answer.read())


@pytest.mark.parametrize(
    "fault",
    [
        Fault("^POST", "answer", 1, 503),
        pytest.param(Fault("^POST", "answer", 1, 429), marks=pytest.mark.nightly),
        Fault("^POST", "cut request"),
        Fault("^POST", "lost answer"),
        Fault("^POST", "cut answer"),
        Fault("^GET", "answer", 2, 503),
        Fault("^GET", "lost answer"),
    ],
    ids=lambda fault: f"{fault.pattern} {fault.does} {fault.status}",
)
def test_what_passes_at_gcs_is_waited_for(here: Path, gcs: Proxy, emulator: str, fault: Fault, tmp_path: Path) -> None:
    gcs.faults.append(replace(fault))
    back, place = tmp_path / "back", f"{fault.does.replace(' ', '-')}{fault.status}{fault.pattern[1:]}"
    back.mkdir()
    names = {"layer_01/shard 1.pt": ANYTHING, "manifest.json": ANYTHING}
    with open_store(f"gs://bucket1/{place}") as store:
        outcome = store.put(here, names, "x")
        outcome.raise_faults()
        assert not gcs.faults[0].times
        get(store, {name: Expected(one.bytes, one.xxh64) for name, one in outcome.moved.items()}, back, "x")
    for name in names:
        assert there(emulator, f"{place}/x/{name}") == (back / name).read_bytes() == (here / name).read_bytes()


def test_what_arrives_otherwise_at_gcs_is_refused_by_name_and_nothing_is_called_whole(here: Path, gcs: Proxy) -> None:
    gcs.faults.append(Fault("^POST", "flip", 100))
    with open_store("gs://bucket1/flipped") as store:
        names = {"line\nbreak": ANYTHING, "manifest.json": ANYTHING}
        outcome = store.put(here, names, "x")
        assert "line\nbreak" in outcome.faults and "gs://bucket1/flipped" in outcome.faults["line\nbreak"]
        assert "line\nbreak" not in store.list("x")
        gcs.faults.clear()
        store.put(here, names, "x").raise_faults()


@pytest.mark.parametrize("status", [401, 403])
def test_gcs_that_refuses_is_one_line_without_what_the_server_said(here: Path, gcs: Proxy, status: int) -> None:
    gcs.faults.append(Fault("^POST", "answer", 100, status, "AccessDenied"))
    with (
        open_store("gs://bucket1/refused") as store,
        pytest.raises(StoreError, match=r"^gs://bucket1/refused: [^\n]+$"),
    ):
        store.put(here, {"a b": ANYTHING})


def test_gcs_that_is_silent_for_once_is_asked_again(here: Path, gcs: Proxy, emulator: str) -> None:
    gcs.faults += [Fault("^POST", "silent"), Fault("^GET", "silent")]
    with open_store("gs://bucket1/silent-once", Access(answer_timeout_s=1.0, patience_s=20.0)) as store:
        store.put(here, {"a b": ANYTHING}).raise_faults()
    assert not any(fault.times for fault in gcs.faults)
    assert there(emulator, "silent-once/a b") == (here / "a b").read_bytes()


@pytest.mark.parametrize("does", ["silent", "drip"])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_an_answer_that_never_ends_is_waited_for_in_vain_only_so_long(
    here: Path, gcs: Proxy, method: str, does: str
) -> None:
    gcs.faults.append(Fault(f"^{method}", does, 100))
    told = r"^gs://bucket1/never: [^\n]* \d s [^\n]*'a b'[^\n]*$"
    with open_store("gs://bucket1/never", Access(patience_s=0.6)) as store, pytest.raises(StoreError, match=told):
        store.put(here, {"a b": ANYTHING})
    assert gcs.faults[0].times < 100


def test_a_cut_answer_to_a_piece_of_an_upload_holds_up_no_longer_than_its_server_may_and_is_told_once(
    here: Path, gcs: Proxy, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("gcsfs"), "propagate", False)  # as where no one listens to the root's
    gcs.faults.append(Fault("upload_id", "cut answer", 2))
    access = Access(answer_timeout_s=1.5, patience_s=20.0)
    # An upload whose last answer was cut is over for the server, which then may say that it knows of none.
    told = "no answer came in|there is no such"
    with open_store("gs://bucket1/cut", access) as store, pytest.raises(StoreError, match=told):
        store.put(here, {"large.bin": ANYTHING})
    assert "Traceback" not in capfd.readouterr().err
