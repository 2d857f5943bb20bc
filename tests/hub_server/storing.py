"""The transfer of contents to and from the hub: git-lfs's batches, storage, parts, ranges."""

from __future__ import annotations

import binascii
import hashlib
import json
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.hub_server.handling import Handling
from tests.hub_server.kept import BLOCK_BYTES, Refused


class Storing(Handling):
    """A method for each kind of route."""

    def _batch(self) -> None:
        wanted = json.loads(self.body)
        one = self._to_upload if wanted["operation"] == "upload" else self._to_download
        transfer = "multipart" if "multipart" in wanted.get("transfers", ()) and self.hub.part_bytes else "basic"
        answer = {"transfer": transfer, "objects": [one(o["oid"], o["size"], transfer) for o in wanted["objects"]]}
        self._answer(answer, headers={"Content-Type": "application/vnd.git-lfs+json"})

    def _to_upload(self, oid: str, size: int, transfer: str) -> dict[str, Any]:
        if self.hub.object_path(oid).exists():
            return {"oid": oid, "size": size}
        href = f"{self.hub.storage}/storage/{oid}"
        upload: dict[str, Any] = {"href": href}
        part = self.hub.part_bytes
        if transfer == "multipart" and part is not None and size > part:
            urls = {str(k + 1): f"{href}/{k + 1}" for k in range(-(-size // part))}
            upload = {"href": f"{href}/complete", "header": {"chunk_size": str(part), **urls}}
        actions = {"upload": upload}
        if self.hub.verifies:
            actions["verify"] = {"href": f"{self.hub.endpoint}/{self.where['repo']}.git/info/lfs/verify"}
        return {"oid": oid, "size": size, "actions": actions}

    def _to_download(self, oid: str, size: int, transfer: str) -> dict[str, Any]:
        if not self.hub.object_path(oid).exists():
            return {"oid": oid, "size": size, "error": {"code": 404, "message": "Object does not exist"}}
        return {"oid": oid, "size": size, "actions": {"download": {"href": f"{self.hub.storage}/storage/{oid}"}}}

    def _verify(self) -> None:
        wanted = json.loads(self.body)
        place = self.hub.object_path(wanted["oid"])
        if not self._forgets() and (not place.exists() or place.stat().st_size != wanted["size"]):
            raise Refused(404, message="Object does not exist")
        self._answer(None)

    def _resolve(self) -> None:
        path = unquote(self.where["file"])
        file = self.hub.files(self.where["repo"], self._rev()).get(path)
        if file is None:
            raise Refused(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": self.hub.head(self.where["repo"], self._rev()), "Accept-Ranges": "bytes"}
        if not file.lfs:
            self._content(self.hub.object_path(file.sha256), {**headers, "ETag": f'"{file.oid}"'})
            return
        linked = {"X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.sha256}"', "ETag": f'"{file.oid}"'}
        place = f"{self.hub.storage}/storage/{file.sha256}"
        self._answer(None, 302, {**headers, **linked, "Location": place})

    def _put(self) -> None:
        self._receive(self.hub.object_path(self.where["file"]), self.where["file"])

    def _part(self) -> None:
        place = self.hub.folder / f"part-{self.where['file']}-{self.where['part']}"
        self._receive(place, None)

    def _complete(self) -> None:
        oid, parts = self.where["file"], json.loads(self.body)["parts"]
        sources = [self.hub.folder / f"part-{oid}-{one['partNumber']}" for one in parts]
        taken, whole = self.hub.folder / f"whole-{oid}-{threading.get_ident()}", hashlib.sha256()
        with taken.open("wb") as out:
            for source, part in zip(sources, parts, strict=True):
                content = source.read_bytes()
                if hashlib.md5(content).hexdigest() != part["etag"].strip('"'):
                    raise Refused(400, message="InvalidPart")
                whole.update(content)
                out.write(content)
        self._take(taken, whole.hexdigest(), oid)

    def _receive(self, place: Path, sha256: str | None) -> None:
        """Stores the body at `place`, as it comes; refused where its checksum is another than `sha256`."""
        left, digest, md5 = int(self.headers["Content-Length"]), hashlib.sha256(), hashlib.md5()
        taken = self.hub.folder / f"taking-{threading.get_ident()}"
        with taken.open("wb") as out:
            while left:
                block = self.rfile.read(min(left, BLOCK_BYTES))
                if not block:
                    self.close_connection = True
                    return
                left -= len(block)
                if self.fault is not None and self.fault.does == "wrong":
                    block = bytes([block[0] ^ 1]) + block[1:]
                digest.update(block)
                md5.update(block)
                out.write(block)
        if sha256 is None:
            taken.replace(place)
            self._answer(None, headers={"ETag": f'"{md5.hexdigest()}"'})
            return
        self._take(taken, digest.hexdigest(), sha256)

    def _take(self, taken: Path, found: str, sha256: str) -> None:
        if found != sha256:
            raise Refused(400, message="BadDigest: the content does not have the checksum that was said")
        place = self.hub.object_path(sha256)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.hub.taken.append(sha256)
        if self._forgets():
            taken.unlink()
        else:
            taken.replace(place)
        self._answer(None)

    def _forgets(self) -> bool:
        return self.fault is not None and self.fault.does == "forget"

    def _fetch(self) -> None:
        place = self.hub.object_path(self.where["file"])
        if not place.exists():
            raise Refused(404, message="NoSuchKey")
        self._content(place, {"ETag": f'"{binascii.crc32(place.name.encode()):x}"', "Accept-Ranges": "bytes"})

    def _content(self, place: Path, headers: dict[str, str]) -> None:
        """A file, or the range of it that is asked for."""
        if not place.exists():
            raise Refused(404, "EntryNotFound", "the storage has lost it")
        size, status = place.stat().st_size, 200
        first, last = 0, size - 1
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if asked and any(asked.groups()):
            first = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
            last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
            if first >= size or last < first:
                self._answer(None, 416, {"Content-Range": f"bytes */{size}"})
                return
            status, headers = 206, {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}
        with place.open("rb") as file:
            file.seek(first)
            self._send_content(file.read(last - first + 1), status, headers)

    def _send_content(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        does = self.fault.does if self.fault else ""
        if does == "wrong" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        self._head(status, len(content), headers)
        if self.command == "HEAD":
            return
        if does == "short":
            self.wfile.write(content[: len(content) // 2])
            self._die()
            return
        self.wfile.write(content)
