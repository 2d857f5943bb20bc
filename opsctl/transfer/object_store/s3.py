"""S3, or what speaks its protocol: parts that the server checks, and an object only when they are all there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from opsctl.transfer.object_store.etag import etag_of, is_of_contents
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.keys import key_of, name_of
from opsctl.transfer.object_store.s3_calls import S3Calls, S3Missing, passing
from opsctl.transfer.object_store.s3_upload import Upload
from opsctl.transfer.object_store.sources import Source
from opsctl.transfer.object_store.types import Access, FarFile

_PIECE_BYTES = 1 << 20
#: An upload of a file that nobody sends any more is taken for a killed one's after so long.
_LEFT_AFTER_S = 24 * 3600.0
#: So few files are asked for one by one; of more, their folder is listed.
_FEW = 2
#: A reading that breaks so often without a byte in between is given up.
_BREAKS = 8


class S3Store:
    """A bucket, or what is below `prefix` in it. Nothing is asked of it before it is used."""

    workers = 10

    def __init__(self, where: str, bucket: str, prefix: str, access: Access) -> None:
        self.where, self._prefix = where, prefix
        self._calls = S3Calls(where, bucket, access, 2 * self.workers)
        self._upload = Upload(self._calls, self.workers)
        self._etags: dict[str, str] = {}  # of what was sent
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go of workers and connections."""
        self._upload.close()
        self._calls.close()

    def stat(self, name: str) -> FarFile | None:
        """The object, None where there is none."""
        head = self._head(name, Flow())
        return None if head is None else _headed(head)

    def list(self, prefix: str) -> dict[str, FarFile]:
        """Every object below the folder `prefix`, by its name there."""
        within = self._key(f"{prefix}/" if prefix else "")
        return {name_of(one["Key"].removeprefix(within)): _far(one) for one in self._objects(within, deep=True)}

    def look(self, names: Collection[str]) -> dict[str, FarFile]:
        """Those of `names` that are there."""
        return {name: far for name, (far, _) in self._looked(names).items()}

    def holds(self, name: str, source: Source) -> str | None:
        """The checksum, where what is there has the same contents, by its note or by what the server says."""
        head = self._head(name, Flow())
        if head is None:
            return None
        noted = head.get("Metadata", {}).get("xxh64")
        if source.xxh64 is not None and noted is not None:
            return source.xxh64 if noted == source.xxh64 else None
        told = head["ETag"].strip('"')
        etag, found = etag_of(source, told)
        source.rewind()
        is_same = told == etag if is_of_contents(head) else noted == found
        return found if is_same else None

    def vouches(self, name: str, source: Source) -> str | None:
        """Return the source's xxh64 where the object's ETag is of its contents, and is the source's."""
        head = self._head(name, Flow())
        if head is None or head["ContentLength"] != source.bytes or not is_of_contents(head):
            return None
        told = head["ETag"].strip('"')
        etag, found = etag_of(source, told)
        return found if etag == told else None

    def send(self, source: Source, name: str, flow: Flow) -> str:
        """Put the object there, each part checked by the server and by what the server says of it."""
        found, etag = self._upload.send(source, self._key(name), name, flow)
        with self._lock:
            self._etags[name] = etag
        return found

    def read(self, name: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """The bytes from `begin` to before `end`, going on behind what came where a connection breaks."""
        flow, breaks = Flow(), 0
        same: dict[str, str] = {}  # what comes in several answers is one object's
        while end is None or begin < end:
            part = {"Range": f"bytes={begin}-{'' if end is None else end - 1}"} if begin or end is not None else {}
            answer = self._calls("get_object", name, flow, Key=self._key(name), **part, **same)
            same, end = {"IfMatch": answer["ETag"]}, begin + answer["ContentLength"]
            with contextlib.closing(answer["Body"]) as body:
                while True:
                    try:
                        piece = body.read(_PIECE_BYTES)
                    except Exception as error:
                        breaks += 1
                        if passing(error) is None or breaks > _BREAKS:
                            raise self._calls.said(error, name) from None
                        break
                    if not piece:
                        break
                    breaks, begin = 0, begin + len(piece)
                    yield memoryview(piece)
            flow.pause(0.1 * breaks)

    def remove(self, name: str) -> None:
        """Remove an object; nothing happens where there is none."""
        self._calls("delete_object", name, Flow(), Key=self._key(name))

    def settle(self, names: Collection[str]) -> dict[str, FarFile]:
        """Look once more: those that are there with what was sent."""
        looked = self._looked(names)
        return {name: far for name, (far, etag) in looked.items() if self._etags.get(name, etag) == etag}

    def tidy(self, names: Collection[str]) -> None:
        """Abort uploads older than a day in the folders of `names`, of other files: theirs are gone on with."""
        keys = {self._key(name) for name in names}
        for folder in sorted({key.rpartition("/")[0] for key in keys}):
            within = f"{folder}/" if folder else ""
            self._abort(
                one
                for one in tuple(self._upload.unfinished(within, Flow()))
                if time.time() - one["Initiated"].timestamp() > _LEFT_AFTER_S
                and one["Key"] not in keys
                and "/" not in one["Key"].removeprefix(within)
            )

    def clean(self, prefix: str) -> int:
        """Abort all uploads below `prefix`, also those that somebody is sending: he begins again. Returns how many."""
        within = self._key(f"{prefix}/" if prefix else "")
        return self._abort(tuple(self._upload.unfinished(within, Flow())))

    def _abort(self, uploads: Iterable[dict[str, Any]]) -> int:
        count = 0
        for one in uploads:
            self._upload.abort(one["Key"], one["UploadId"], Flow())
            count += 1
        return count

    def _key(self, name: str) -> str:
        key = key_of(name)
        return f"{self._prefix}/{key}" if self._prefix else key

    def _head(self, name: str, flow: Flow) -> dict[str, Any] | None:
        try:
            return self._calls("head_object", name, flow, Key=self._key(name))
        except S3Missing:
            return None

    def _looked(self, names: Collection[str]) -> dict[str, tuple[FarFile, str]]:
        """Those of `names` that are there, each with its ETag."""
        found = {}
        if len(names) <= _FEW:
            for name in names:
                head = self._head(name, Flow())
                if head:
                    found[name] = _headed(head), head["ETag"]
        else:
            keys = {self._key(name): name for name in names}
            for within in sorted({key.rpartition("/")[0] for key in keys}):
                for one in self._objects(f"{within}/" if within else "", deep=False):
                    if one["Key"] in keys:
                        found[keys[one["Key"]]] = _far(one), one["ETag"]
        return {name: (far, etag.strip('"')) for name, (far, etag) in found.items()}

    def _objects(self, within: str, deep: bool) -> Iterator[dict[str, Any]]:
        """What S3 lists under keys that begin with `within`, or only of those without another slash."""
        marker: dict[str, str] = {} if deep else {"Delimiter": "/"}
        while True:
            page = self._calls("list_objects_v2", within, Flow(), Prefix=within, **marker)
            yield from page.get("Contents", ())
            if not page.get("IsTruncated"):
                return
            marker["ContinuationToken"] = page["NextContinuationToken"]


def _headed(head: dict[str, Any]) -> FarFile:
    return _far_file(head, head["ContentLength"])


def _far(one: dict[str, Any]) -> FarFile:
    return _far_file(one, one["Size"])


def _far_file(one: dict[str, Any], size: int) -> FarFile:
    changed_at = one["LastModified"].timestamp()
    etag = one.get("ETag")
    return FarFile(size, changed_at, f"{etag}.{changed_at:.0f}" if etag else "")
