"""A bucket: S3 through s3fs, GCS through gcsfs. An object appears when it is whole."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from opsctl.transfer.object_store.flow import Flow, NoAnswer, Stopped, limit_s, within
from opsctl.transfer.object_store.sources import CHUNK_BYTES, Source, check_digest, new_digest
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Access, FarFile, FileFault, StoreError, is_part, key_of, name_of
from trainer.formats.distribution import install_command

T = TypeVar("T")

_S3, _GCS = ("s3", "s3a"), ("gs", "gcs")
#: Scheme -> the extra of ours that installs its package.
SCHEMES = {**dict.fromkeys(_S3, "s3"), **dict.fromkeys(_GCS, "gcs")}
#: Objects are sent in parts of this size, or larger ones where S3 would get more than it takes.
PART_BYTES = 16 << 20
_MOST_PARTS = 10_000
#: What a client sends at once: one part, and what it held before.
_MOST_AT_ONCE_BYTES = PART_BYTES + (5 << 20)
#: Keys of fsspec's information about a file. A store that has one of them changes it with every write.
_CHANGES_WITH_EVERY_WRITE = ("etag", "ETag", "generation", "md5Hash", "content_md5")
_NO_CREDENTIALS = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials"


class FsspecStore(Store):
    """The files below a URL. Raises StoreError where its package is missing."""

    def __init__(self, where: str, scheme: str, access: Access) -> None:
        self.where, self._patience_s = where, access.patience_s
        try:
            self._system, root = self._waited_for(lambda: _opened(where, scheme, access))
        except NoAnswer as error:
            raise StoreError(f"{where}: {error}; try again later") from None
        except ImportError:
            package = install_command(SCHEMES[scheme])
            raise StoreError(f"{where} needs a package that is not here: {package}") from None
        except Exception as error:
            raise StoreError(f"{where} cannot be used: {type(error).__name__}") from None
        self._root = root.rstrip("/")
        self._is_s3 = scheme in _S3

    def stat(self, name: str) -> FarFile | None:
        """Return the file; None where there is none."""
        info = self._info(name)
        return None if info is None else _far(info)

    def list(self, prefix: str = "") -> dict[str, FarFile]:
        """Return every whole file below the folder `prefix`, by its name there."""
        top = self._path(prefix)
        with self._translated(prefix):
            try:
                found = self._waited_for(lambda: self._system.find(top, detail=True))
            except FileNotFoundError:
                return {}
        names = {name_of(path.removeprefix(f"{top}/")): _far(info) for path, info in found.items()}
        return {name: far for name, far in names.items() if not is_part(name)}

    def proves(self, name: str, source: Source) -> str | None:
        """Return the source's xxh64 where the checksum that the store computed is that of the source."""
        reported = self._checksum(self._info(name))
        if reported is None:
            return None
        digest, own = new_digest(), self._own_checksum(source)
        for piece in _pieces(source.checked(digest), _part_bytes(source.bytes)):
            own.add(piece)
        return str(digest.hexdigest()) if own.value == reported else None

    def send(self, source: Source, name: str, flow: Flow) -> str:
        """Write the file, prove it by the store's own checksum or by reading it back, and return its xxh64."""
        with self._translated(name):
            found, own = self._write(source, name, flow)
            if self._checksum(self._info(name)) != own:
                try:
                    check_digest(name, self.digest(name), found, f"read back from {self.where}")
                except FileFault:
                    self.remove_one(name)
                    raise
        return found

    def pieces(self, name: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """Yield the bytes from `begin` to before `end`. Raises FileFault where there are none, or fewer."""
        far = self.stat(name)
        if far is None:
            raise FileFault(f"{name!a} is not in {self.where}")
        end = far.bytes if end is None else end
        while begin < end:
            stop = min(end, begin + CHUNK_BYTES)
            read = partial(self._system.cat_file, self._path(name), start=begin, end=stop)
            with self._translated(name):
                piece = bytes(self._waited_for(read, stop - begin))
            if not piece:
                raise FileFault(f"{name!a} in {self.where} ends after {begin} bytes")
            begin += len(piece)
            yield memoryview(piece)

    def remove_one(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""
        with self._translated(name), contextlib.suppress(FileNotFoundError):
            self._waited_for(lambda: self._system.rm_file(self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{key_of(name)}" if name else self._root

    def _info(self, name: str) -> dict[str, Any] | None:
        with self._translated(name):
            try:
                info = dict(self._waited_for(lambda: self._system.info(self._path(name))))
            except FileNotFoundError:
                return None
        return info if info.get("type") == "file" else None

    def _checksum(self, info: dict[str, Any] | None) -> str | None:
        """Return the checksum that the store computed; None where it reports none."""
        if info and info.get("md5Hash"):
            return base64.b64decode(info["md5Hash"]).hex()
        return str(info["ETag"]).strip('"') if info and self._is_s3 and info.get("ETag") else None

    def _own_checksum(self, source: Source) -> _Checksum:
        return _Checksum(in_parts=self._is_s3 and source.bytes >= _part_bytes(source.bytes))

    def _write(self, source: Source, name: str, flow: Flow) -> tuple[str, str]:
        """Return (xxh64, checksum as the store computes it) of what was written; after an error nothing is there."""
        digest, own, size = new_digest(), self._own_checksum(source), _part_bytes(source.bytes)
        file = self._waited_for(lambda: self._system.open(self._path(name), "wb", block_size=size))
        try:
            for piece in _pieces(_counted(source.checked(digest), flow), size):
                own.add(piece)
                self._waited_for(partial(file.write, piece), len(piece))
                flow.done(len(piece))
            self._waited_for(file.close, min(source.bytes, size + (5 << 20)))
        except BaseException as error:
            if not isinstance(error, NoAnswer):  # or each of these would wait as long again
                with contextlib.suppress(Exception):
                    self._waited_for(file.discard)
            with contextlib.suppress(AttributeError):
                file.closed = True  # or its destructor would write the half that there is
            raise
        return str(digest.hexdigest()), own.value

    def _waited_for(self, do: Callable[[], T], count: int = 0) -> T:
        """Return what `do` returns, which carries `count` bytes. Raises NoAnswer."""
        return within(limit_s(self._patience_s, count), do)

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """Raise a library's errors as StoreError: one line, without the library's text, which may have a secret."""
        try:
            yield
        except (StoreError, FileFault, Stopped):
            raise
        except NoAnswer as error:
            raise StoreError(f"{self.where}: {error} about {name!a}; try again later") from None
        except FileNotFoundError:
            raise StoreError(f"{self.where}: there is no such bucket or folder: make it, or correct the URL") from None
        except Exception as error:
            if type(error).__name__ == "FlexibleChecksumError":  # botocore's, which compares what it reads
                raise FileFault(f"{name!a} in {self.where} has not the checksum that it was sent with") from None
            raise StoreError(f"{self.where}: {_reason(error)} about {name!a}") from None


class _Checksum:
    """The checksum that a store computes of what it gets: an MD5, on S3 that of the parts' MD5s."""

    def __init__(self, in_parts: bool) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._in_parts, self._count = in_parts, 0

    def add(self, part: bytes) -> None:
        self._count += 1
        self._md5.update(hashlib.md5(part, usedforsecurity=False).digest() if self._in_parts else part)

    @property
    def value(self) -> str:
        return self._md5.hexdigest() + (f"-{self._count}" if self._in_parts else "")


def _part_bytes(size: int) -> int:
    """Return the size of the parts of an object of `size` bytes: the same for every sender, so that ETags agree."""
    return max(PART_BYTES, -(-size // (_MOST_PARTS << 20)) << 20)


def _pieces(chunks: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Yield the bytes of chunks in pieces of `size`; only the last one may be shorter."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


def _counted(chunks: Iterable[memoryview], flow: Flow) -> Iterator[memoryview]:
    for chunk in chunks:
        flow.take(len(chunk))
        yield chunk


def _opened(where: str, scheme: str, access: Access) -> tuple[Any, str]:
    """Return fsspec's file system, and the path in it. Raises what fsspec raises."""
    from fsspec.core import url_to_fs

    # Errors are raised too: without a handler Python would print the library's warning with its traceback.
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())
    system, root = url_to_fs(
        where, use_listings_cache=False, skip_instance_cache=True, **_limits_of_requests(scheme, access)
    )
    return system, str(root)


def _limits_of_requests(scheme: str, access: Access) -> dict[str, Any]:
    """Return the options that limit each request; the libraries repeat what failed for a passing reason."""
    if scheme in _S3:
        limits = {"connect_timeout": access.connect_timeout_s, "read_timeout": access.answer_timeout_s}
        return {
            "endpoint_url": access.endpoint,
            "config_kwargs": {**limits, "retries": {"mode": "standard", "max_attempts": 6}},
        }
    # GCS has no limit otherwise, and is not repeated while it is silent.
    from aiohttp import ClientTimeout

    total_s = limit_s(access.patience_s, _MOST_AT_ONCE_BYTES)
    connect_s, read_s = access.connect_timeout_s, access.answer_timeout_s
    return {"requests_timeout": ClientTimeout(total=total_s, sock_connect=connect_s, sock_read=read_s)}


def _reason(error: Exception) -> str:
    """Return the kind of an error and the store's code for it."""
    kind = type(error).__name__
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        return _NO_CREDENTIALS
    answer = getattr(error.__cause__, "response", None) or {}
    code = (answer.get("Error") or {}).get("Code") if isinstance(answer, dict) else None
    return " ".join(str(one) for one in (kind, code or getattr(error, "code", "")) if one)


def _far(info: dict[str, Any]) -> FarFile:
    mark = ".".join(str(info[key]) for key in _CHANGES_WITH_EVERY_WRITE if info.get(key))
    return FarFile(int(info["size"]), mark)
