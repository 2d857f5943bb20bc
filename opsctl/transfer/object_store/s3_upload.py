"""Sending one object to S3: whole up to some size, else in parallel parts, going on where a killed upload ended."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from opsctl.transfer.object_store.etag import is_of_contents, part_bytes, whole_etag
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.memory import Memory
from opsctl.transfer.object_store.s3_body import Body, FileBody, next_body
from opsctl.transfer.object_store.s3_calls import S3Calls, S3Fault, S3Missing
from opsctl.transfer.object_store.sources import FileSource, Source
from opsctl.transfer.object_store.types import FileFault

#: A file up to here is one request: half of what parts cost a server, and what a killed upload has to send again.
_MOST_WHOLE_BYTES = 100 << 20
_MOST_MEMORY_BYTES = 96 << 20
#: Parts of files are not held in memory; so far ahead of their sending they are read, and in the page cache then.
_MOST_AHEAD_BYTES = 256 << 20
#: How often an object, or a part, is sent anew that arrived otherwise, or whose upload somebody else ended.
_TRIES = 3
_ENDED_BY_OTHERS = ("NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall")


class _Anew(Exception):
    """Begin again with a new upload; the text says why."""


@dataclass
class _Parts:
    """One upload on its way."""

    key: str
    name: str
    upload: str
    there: dict[int, str] = field(default_factory=dict)  # the ETags of parts that an earlier try has sent
    jobs: list[Future[bytes]] = field(default_factory=list)


class Upload:
    """Sends objects to one bucket. Raises FileFault and StoreError."""

    def __init__(self, calls: S3Calls, workers: int) -> None:
        self._calls = calls
        self._memory = Memory(_MOST_MEMORY_BYTES)
        self._ahead = Memory(_MOST_AHEAD_BYTES)
        self._pool = ThreadPoolExecutor(workers)

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown()

    def send(self, source: Source, key: str, name: str, flow: Flow) -> tuple[str, str]:
        """(xxh64, ETag) of the object, which is there then; the caller looks for it once more."""
        if source.bytes <= (_MOST_WHOLE_BYTES if isinstance(source, FileSource) else part_bytes(source.bytes)):
            return self._whole(source, key, name, flow)
        for number in range(_TRIES):
            try:
                return self._in_parts(source, key, name, flow, go_on=not number)
            except _Anew as found:
                why = str(found)
                source.rewind()
        raise FileFault(f"{name!a} cannot be sent to {self._calls.where}: {why}, {_TRIES} times")

    def unfinished(self, prefix: str, flow: Flow) -> Iterator[dict[str, Any]]:
        """The uploads under keys that begin with `prefix` that nobody has ended, the newest last."""
        marker: dict[str, Any] = {}
        while True:
            page = self._calls("list_multipart_uploads", prefix, flow, Prefix=prefix, **marker)
            yield from page.get("Uploads", ())
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def abort(self, key: str, upload: str, flow: Flow) -> None:
        """End an upload, and let the server forget its parts."""
        with contextlib.suppress(S3Missing):
            self._calls("abort_multipart_upload", key, flow, Key=key, UploadId=upload)

    def _whole(self, source: Source, key: str, name: str, flow: Flow) -> tuple[str, str]:
        in_memory = 0 if isinstance(source, FileSource) else source.bytes
        self._memory.take(in_memory, flow)
        try:
            body, own = next_body(source, source.bytes, flow)
            found = source.finish()
            self._checked("put_object", name, body, own, flow, Key=key, Metadata={"xxh64": found})
        finally:
            self._memory.give_back(in_memory)
        flow.done(source.bytes)
        return found, own.hex()

    def _in_parts(self, source: Source, key: str, name: str, flow: Flow, go_on: bool) -> tuple[str, str]:
        parts = self._begun_before(key, name, flow) if go_on else None
        was_begun = parts is not None
        if parts is None:
            noted = {"Metadata": {"xxh64": source.xxh64}} if source.xxh64 else {}
            answer = self._calls("create_multipart_upload", name, flow, Key=key, **noted)
            parts = _Parts(key, name, answer["UploadId"])
        try:
            self._read_out(source, parts, flow)
            found = source.finish()
            own = [job.result() for job in parts.jobs]
        except S3Fault as fault:
            if fault.code in _ENDED_BY_OTHERS:
                raise _Anew("its upload was ended by somebody else") from None
            raise
        except FileFault:
            wait(parts.jobs)
            self.abort(key, parts.upload, flow)
            raise
        finally:
            wait(parts.jobs)
        etag = whole_etag(own)
        self._complete(parts, own, etag, flow)
        if was_begun:
            self._check_note(parts, found, flow)
        return found, etag

    def _begun_before(self, key: str, name: str, flow: Flow) -> _Parts | None:
        """The upload that a killed transfer left of this object; others of it are ended."""
        there = sorted(
            (one for one in self.unfinished(key, flow) if one["Key"] == key), key=lambda one: one["Initiated"]
        )
        for one in there[:-1]:
            self.abort(key, one["UploadId"], flow)
        if not there:
            return None
        parts = _Parts(key, name, there[-1]["UploadId"])
        marker: dict[str, Any] = {}
        try:
            while True:
                page = self._calls("list_parts", name, flow, Key=key, UploadId=parts.upload, **marker)
                parts.there |= {one["PartNumber"]: one["ETag"].strip('"') for one in page.get("Parts", ())}
                if not page.get("IsTruncated"):
                    return parts
                marker = {"PartNumberMarker": page["NextPartNumberMarker"]}
        except S3Missing:
            return None

    def _read_out(self, source: Source, parts: _Parts, flow: Flow) -> None:
        """Read the source part by part, each handed to a worker while not too many wait for one."""
        room = self._ahead if isinstance(source, FileSource) else self._memory
        size, left = part_bytes(source.bytes), source.bytes
        while left and not any(job.done() and job.exception() for job in parts.jobs):
            count = min(size, left)
            room.take(count, flow)
            try:
                body, own = next_body(source, count, flow)
                parts.jobs.append(self._pool.submit(self._part, parts, len(parts.jobs) + 1, body, own, flow, room))
            except BaseException:
                room.give_back(count)
                raise
            left -= count
        for job in parts.jobs if left else ():
            job.result()

    def _part(self, parts: _Parts, number: int, body: Body, own: bytes, flow: Flow, room: Memory) -> bytes:
        """Send one part, unless it is there. Returns its MD5."""
        try:
            if parts.there.get(number) != own.hex():
                where = {"Key": parts.key, "UploadId": parts.upload, "PartNumber": number}
                self._checked("upload_part", parts.name, body, own, flow, **where)
            flow.done(len(body))
            return own
        finally:
            room.give_back(len(body))

    def _checked(self, operation: str, name: str, body: Body, own: bytes, flow: Flow, **arguments: Any) -> None:
        """Send a body until the server says that it has it as it is, with the MD5 `own`."""
        told = base64.b64encode(own).decode()
        for _ in range(_TRIES):
            if not isinstance(body, FileBody):
                flow.take(len(body))
            try:
                answer = self._calls(operation, name, flow, Body=body, ContentMD5=told, **arguments)
            except S3Fault as fault:
                if fault.code != "BadDigest":
                    raise
                continue
            if not is_of_contents(answer) or answer["ETag"].strip('"') == own.hex():
                return
        raise FileFault(f"{name!a} arrived otherwise in {self._calls.where}, {_TRIES} times")

    def _complete(self, parts: _Parts, own: list[bytes], etag: str, flow: Flow) -> None:
        """Let the server make one object of the parts."""
        listed = [{"PartNumber": number, "ETag": f'"{one.hex()}"'} for number, one in enumerate(own, 1)]
        arguments = {"UploadId": parts.upload, "MultipartUpload": {"Parts": listed}}
        try:
            answer = self._calls("complete_multipart_upload", parts.name, flow, Key=parts.key, **arguments)
        except S3Fault as fault:
            # Its answer may have been lost, or another transfer of the same file may have been quicker.
            if fault.code not in _ENDED_BY_OTHERS:
                raise
            with contextlib.suppress(S3Missing):
                if self._calls("head_object", parts.name, flow, Key=parts.key)["ETag"].strip('"') == etag:
                    return
            raise _Anew("its upload was ended by somebody else") from None
        if is_of_contents(answer) and answer["ETag"].strip('"') != etag:
            raise _Anew("it arrived otherwise")

    def _check_note(self, parts: _Parts, found: str, flow: Flow) -> None:
        """An upload that was begun before may have been told the checksum of what the file was then."""
        head = self._calls("head_object", parts.name, flow, Key=parts.key)
        if head.get("Metadata", {}).get("xxh64", found) != found:
            raise _Anew("its note is another file's")
