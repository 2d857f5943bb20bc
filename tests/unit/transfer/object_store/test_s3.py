"""A real S3 server, reached through s3fs: what arrives, what is proven, what a kill or a bad server leaves."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from opsctl.transfer.object_store import fsspec_store
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.types import ANYTHING, Access, Expected, FileFault, StoreError
from opsctl.transfer.object_store.urls import open_store
from tests.s3_server import KEY, SECRET, Fault, Proxy, environment
from tests.unit.transfer.object_store.test_folder import files_of, flip, get, replaced, same

#: The least that s3fs takes.
PART = 5 << 20
#: Three parts, the last one short.
LARGE = 2 * PART + 5
UPLOADS = "partNumber=.*uploadId|uploadId=.*partNumber"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec_store, "PART_BYTES", PART)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with one file of several parts and two small ones."""
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "states.pt").write_bytes(os.urandom(LARGE))
    (folder / "weights.pt").write_bytes(os.urandom(1000))
    (folder / "manifest.json").write_text("{}")
    return folder


def known(folder: Path) -> dict[str, Expected]:
    """Return what a manifest says of the files in a folder."""
    found = {name: (folder / name).read_bytes() for name in files_of(folder)}
    return {name: Expected(len(data), xxhash.xxh64(data).hexdigest()) for name, data in found.items()}


def contents(s3: Any, bucket: str) -> dict[str, bytes]:
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]
    return {key: bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read()) for key in keys}


def contents_here(folder: Path, prefix: str = "") -> dict[str, bytes]:
    return {prefix + name: (folder / name).read_bytes() for name in files_of(folder)}


def test_every_file_arrives_and_comes_back_whatever_its_name(
    here: Path, tmp_path: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    (here / os.fsdecode(b"\xff 100%25.log")).write_text("x")
    back = tmp_path / "back"
    back.mkdir()
    with open_store(f"s3://{bucket}/pre fix") as store:
        outcome = store.put(here, files_of(here), "run 1/-step")
        assert not outcome.faults
        assert set(store.list("run 1/-step")) == set(files_of(here))
        get(store, {name: Expected(one.bytes, one.xxh64) for name, one in outcome.moved.items()}, back, "run 1/-step")
    assert same(here, back)
    found = contents(s3, bucket)
    assert found["pre fix/run 1/-step/layer_01/shard 1.pt"] == (here / "layer_01/shard 1.pt").read_bytes()
    assert found["pre fix/run 1/-step/line%0Abreak"] == (here / "line\nbreak").read_bytes()


def test_the_servers_checksum_proves_a_file_and_nothing_is_read_back(
    large: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    with open_store(f"s3://{bucket}") as store:
        store.put(large, known(large)).raise_faults()
        assert contents(s3, bucket) == contents_here(large)
        assert proxy.count(UPLOADS) == 3 and not proxy.count(f"^GET /{bucket}/states")
        proxy.requests.clear()
        flip(large / "weights.pt")
        moved = store.put(large, files_of(large)).moved
    assert [name for name, one in moved.items() if not one.was_there] == ["weights.pt"]
    assert proxy.count("^PUT") == 1


def test_a_file_that_was_sent_in_other_parts_is_proven_by_reading_it(
    large: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    s3.put_object(Bucket=bucket, Key="states.pt", Body=(large / "states.pt").read_bytes())
    with open_store(f"s3://{bucket}") as store:
        assert store.put(large, {"states.pt": ANYTHING}).moved["states.pt"].was_there
    assert proxy.count(f"^GET /{bucket}/states.pt") and not proxy.count("^PUT")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("^PUT", "answer", 2, 503, "SlowDown"),
        pytest.param(Fault("^PUT", "cut request", 2), marks=pytest.mark.nightly),
        Fault("^PUT", "lost answer", 2),
        Fault("^POST.*uploads", "lost answer"),
        pytest.param(Fault("^GET", "answer", 3, 503, "SlowDown"), marks=pytest.mark.nightly),
    ],
    ids=lambda fault: f"{fault.pattern} {fault.does} {fault.status}",
)
def test_what_passes_is_repeated(large: Path, proxy: Proxy, bucket: str, s3: Any, fault: Fault) -> None:
    proxy.faults.append(Fault(**vars(fault)))
    with open_store(f"s3://{bucket}/a") as store:
        store.put(large, known(large), "b").raise_faults()
    assert not proxy.faults[0].times
    assert contents(s3, bucket) == contents_here(large, "a/b/")


def test_a_file_that_arrives_damaged_is_refused_by_name_and_removed(
    large: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    proxy.faults.append(Fault("^PUT", "flip", 100))
    with open_store(f"s3://{bucket}") as store:
        outcome = store.put(large, known(large))
    assert set(outcome.faults) == {"states.pt", "weights.pt", "manifest.json"}
    assert "states.pt" in outcome.faults["states.pt"] and contents(s3, bucket) == {}


def test_what_is_not_as_it_was_sent_is_found_by_reading(
    large: Path, proxy: Proxy, bucket: str, s3: Any, tmp_path: Path
) -> None:
    back = tmp_path / "back"
    back.mkdir()
    with open_store(f"s3://{bucket}") as store:
        store.put(large, known(large)).raise_faults()
        s3.put_object(Bucket=bucket, Key="weights.pt", Body=os.urandom(1000))
        s3.delete_object(Bucket=bucket, Key="manifest.json")
        assert set(store.check(known(large)).faults) == {"weights.pt", "manifest.json"}
        assert set(get(store, known(large), back).faults) == {"weights.pt", "manifest.json"}
    assert set(files_of(back)) == {"states.pt"}


def test_a_store_that_loses_what_it_acknowledged_is_found(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    proxy.faults.append(
        Fault("^HEAD .*weights.pt", "call", 2, calls=lambda: s3.delete_object(Bucket=bucket, Key="weights.pt"))
    )
    with open_store(f"s3://{bucket}") as store:
        outcome = store.put(large, known(large))
        assert [*outcome.faults] == ["weights.pt"] and f"s3://{bucket}" in outcome.faults["weights.pt"]
        store.put(large, known(large)).raise_faults()
    assert contents(s3, bucket) == contents_here(large)


_PUT = f"""
import sys
from pathlib import Path
from opsctl.transfer.object_store import fsspec_store
fsspec_store.PART_BYTES = {PART}
from opsctl.transfer.object_store.urls import open_store
from opsctl.transfer.object_store.types import ANYTHING
folder = Path(sys.argv[2])
with open_store(sys.argv[1]) as store:
    store.put(folder, {{path.name: ANYTHING for path in folder.iterdir()}}).raise_faults()
"""


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("^POST .*uploads", marks=pytest.mark.nightly),
        "partNumber=2",
        "^POST .*uploadId",
        pytest.param("^PUT .*weights", marks=pytest.mark.nightly),
    ],
)
def test_killed_at_every_stage_nothing_half_there_has_a_name_and_what_arrived_is_not_sent_again(
    large: Path, proxy: Proxy, bucket: str, s3: Any, at: str
) -> None:
    words = [sys.executable, "-c", _PUT, f"s3://{bucket}", str(large)]
    killed: list[subprocess.Popen[bytes]] = []
    proxy.faults.append(Fault(at, "call", calls=lambda: killed[0].send_signal(signal.SIGKILL)))
    with subprocess.Popen(words, env=environment(proxy.endpoint)) as process:
        killed.append(process)
        assert process.wait(60) == -signal.SIGKILL
    there = contents(s3, bucket)
    assert there.items() <= contents_here(large).items()
    proxy.requests.clear()
    with open_store(f"s3://{bucket}") as store:
        store.put(large, files_of(large)).raise_faults()
    assert contents(s3, bucket) == contents_here(large)
    assert not any(proxy.count(f"^(PUT|POST) .*/{name}") for name in there)


def test_two_at_once_end_with_one_whole_file(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    words = [sys.executable, "-c", _PUT, f"s3://{bucket}", str(large)]
    both = [
        subprocess.Popen(words, env=environment(proxy.endpoint), stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    told = [one.communicate(timeout=120)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert contents(s3, bucket) == contents_here(large)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: os.truncate(path, PART + 10), "shrank"),
        (lambda path: path.open("ab").write(b"x"), "grew"),
        (lambda path: replaced(path), "replaced"),
    ],
    ids=["shrinks", "grows", "replaced"],
)
def test_a_file_that_changes_while_it_is_read_is_refused_and_its_upload_ended(
    large: Path, proxy: Proxy, bucket: str, s3: Any, change: Callable[[Path], object], told: str
) -> None:
    proxy.faults.append(Fault("^POST .*uploads", "call", calls=lambda: change(large / "states.pt")))
    with open_store(f"s3://{bucket}") as store:
        outcome = store.put(large, {"states.pt": ANYTHING})
    assert told in outcome.faults["states.pt"]
    assert not contents(s3, bucket) and not s3.list_multipart_uploads(Bucket=bucket).get("Uploads")


@pytest.mark.parametrize(
    ("status", "code", "at"),
    [
        (403, "InvalidAccessKeyId", "^HEAD"),
        (403, "AccessDenied", "^PUT"),
        (400, "ExpiredToken", "^PUT"),
        (507, "XMinioStorageFull", "^PUT"),
    ],
)
def test_what_does_not_pass_is_one_line(
    large: Path, proxy: Proxy, bucket: str, status: int, code: str, at: str
) -> None:
    proxy.faults.append(Fault(at, "answer", 1000, status, code))
    shown = "403|Forbidden" if at == "^HEAD" else code  # an answer to HEAD has no body
    with open_store(f"s3://{bucket}") as store, pytest.raises(StoreError, match=shown) as caught:
        store.put(large, known(large))
    assert re.fullmatch(rf"s3://{bucket}: [^\n]+", str(caught.value))
    assert KEY not in str(caught.value) and SECRET not in str(caught.value)


def test_a_bucket_that_is_not_there_is_one_line(large: Path, proxy: Proxy) -> None:
    with open_store("s3://never-made/x") as store, pytest.raises(StoreError, match=r"^s3://never-made/x: [^\n]*bucket"):
        store.put(large, known(large))


def test_without_credentials_it_says_where_they_are_looked_for(
    large: Path, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with open_store(f"s3://{bucket}") as store, pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID"):
        store.put(large, known(large))


@pytest.mark.parametrize("does", ["silent", "nobody"])
def test_a_server_that_does_not_answer_is_given_up_in_a_line(
    large: Path, proxy: Proxy, bucket: str, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if does == "nobody":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    else:
        proxy.faults.append(Fault("", "silent", 100))
    access = Access(connect_timeout_s=0.2, answer_timeout_s=0.2, patience_s=0.5)
    with open_store(f"s3://{bucket}", access) as store, pytest.raises(StoreError, match=f"^s3://{bucket}: "):
        store.put(large, known(large))


def test_an_endpoint_that_is_given_goes_before_variables(
    large: Path, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with open_store(f"s3://{bucket}", Access(endpoint=proxy.endpoint)) as store:
        store.put(large, known(large)).raise_faults()


def test_a_small_part_of_an_object_is_read_alone(large: Path, proxy: Proxy, bucket: str) -> None:
    with open_store(f"s3://{bucket}") as store:
        store.put(large, files_of(large)).raise_faults()
        data = (large / "states.pt").read_bytes()
        assert store.read("states.pt", 5, 1005) == data[5:1005]
        assert store.read("states.pt", 7, 7) == b""
        with pytest.raises(FileFault, match="is not in"):
            store.read("never")
        store.remove([*files_of(large), "never"])
        assert store.list() == {}


def test_an_interruption_ends_it_and_leaves_no_upload(large: Path, proxy: Proxy, bucket: str, s3: Any) -> None:
    def reached(count: int) -> None:
        if count >= PART:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), open_store(f"s3://{bucket}") as store:
        store.put(large, {"states.pt": ANYTHING}, flow=Flow(reached=reached))
    assert contents(s3, bucket) == {} and not s3.list_multipart_uploads(Bucket=bucket).get("Uploads")
