"""Whatever else fsspec reaches, GCS among it, through its plain calls; what a store cannot prove is read back."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, TypeVar

from opsctl.transfer.object_store.deadlines import NoAnswer, limit_s, within
from opsctl.transfer.object_store.etag import next_md5
from opsctl.transfer.object_store.flow import Flow, Stopped
from opsctl.transfer.object_store.keys import key_of, name_of
from opsctl.transfer.object_store.sources import CHUNK_BYTES, Source, check_digest, digest_of, new_digest
from opsctl.transfer.object_store.types import PART, Access, FarFile, FileFault, StoreError
from trainer.formats.distribution import install_command

T = TypeVar("T")

#: Stores in which a file comes to be when it is whole; elsewhere it is written beside and renamed.
_WHOLE_AT_ONCE = ("gs", "gcs", "abfs", "abfss", "az", "adl")
_GCS = ("gs", "gcs")
#: What a client sends at once: the piece that it was given last, and what it held before.
_MOST_AT_ONCE_BYTES = CHUNK_BYTES + (5 << 20)
#: Keys of fsspec's information about a file. A store that has one of them changes it with every write.
_CHANGES_WITH_EVERY_WRITE = ("etag", "ETag", "generation", "md5Hash", "content_md5")
_EXTRAS = {"gs": "gcs", "gcs": "gcs"}


class FsspecStore:
    """What is below a URL. Raises StoreError where fsspec knows no such store, or its package is missing."""

    workers = 4

    def __init__(self, where: str, scheme: str, access: Access) -> None:
        self.where, self._patience_s = where, access.patience_s
        try:
            self._system, root = self._waited_for(lambda: _opened(where, scheme, access))
        except NoAnswer as error:
            raise StoreError(f"{where}: {error}; try again later") from None
        except ImportError as error:
            package = install_command(_EXTRAS[scheme]) if scheme in _EXTRAS else str(error)
            raise StoreError(f"{where} needs a package that is not here: {package}") from None
        except ValueError:
            raise StoreError(f"{where}: fsspec knows no store {scheme}://") from None
        except Exception as error:
            raise StoreError(f"{where} cannot be used: {type(error).__name__}") from None
        self._root = root.rstrip("/")
        self._is_whole_at_once = scheme in _WHOLE_AT_ONCE

    def close(self) -> None:
        """Nothing is held."""

    def stat(self, name: str) -> FarFile | None:
        """The file, None where there is none."""
        info = self._info(name)
        return None if info is None else _far(info)

    def list(self, prefix: str) -> dict[str, FarFile]:
        """Every whole file below the folder `prefix`, by its name there."""
        return {name: far for name, far in self._found(prefix) if not name.rpartition("/")[2].startswith(PART)}

    def look(self, names: Collection[str]) -> dict[str, FarFile]:
        """Those of `names` that are there."""
        return {name: far for name in names if (far := self.stat(name)) is not None}

    def holds(self, name: str, source: Source) -> str | None:
        """The checksum, where the file of that size that is there has the same contents, which are read."""
        expected = source.xxh64 or digest_of(source)
        return expected if self._digest(name) == expected else None

    def vouches(self, name: str, source: Source) -> str | None:
        """Return the source's xxh64 where the store reports an MD5, and it is that of the source."""
        told = (self._info(name) or {}).get("md5Hash")
        return source.finish() if told and base64.b64decode(told) == next_md5(source, source.bytes) else None

    def send(self, source: Source, name: str, flow: Flow) -> str:
        """Write the file, and prove it by the store's own MD5 or by reading it back. Returns its xxh64."""
        above, slash, _ = name.rpartition("/")
        written = name if self._is_whole_at_once else f"{above}{slash}{PART}{secrets.token_hex(8)}"
        with self._saying(name):
            if not self._is_whole_at_once:
                self._waited_for(lambda: self._system.makedirs(self._path(above), exist_ok=True))
            found, md5 = self._written(source, written, flow)
            told = (self._info(written) or {}).get("md5Hash")
            if told is None:
                check_digest(name, self._digest(written), found, f"read back from {self.where}")
            elif base64.b64decode(told) != md5:
                raise FileFault(f"{name!a} arrived otherwise in {self.where}")
            if written != name:
                self._waited_for(lambda: self._system.mv(self._path(written), self._path(name)), source.bytes)
        return found

    def read(self, name: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """The bytes from `begin` to before `end`."""
        far = self.stat(name)
        if far is None:
            raise FileFault(f"{name!a} is not in {self.where}")
        end = far.bytes if end is None else end
        while begin < end:
            with self._saying(name):
                piece = self._piece(name, begin, min(end, begin + CHUNK_BYTES))
            if not piece:
                raise FileFault(f"{name!a} in {self.where} ends after {begin} bytes")
            begin += len(piece)
            yield memoryview(piece)

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""
        with self._saying(name), contextlib.suppress(FileNotFoundError):
            self._waited_for(lambda: self._system.rm_file(self._path(name)))

    def settle(self, names: Collection[str]) -> dict[str, FarFile]:
        """Look once more: those that are there."""
        return self.look(names)

    def tidy(self, names: Collection[str]) -> None:
        """Nothing: whether somebody writes a part now cannot be seen here."""

    def clean(self, prefix: str) -> int:
        """Remove parts that transfers left below `prefix`. Returns how many."""
        left = [name for name, _ in self._found(prefix) if name.rpartition("/")[2].startswith(PART)]
        for name in left:
            self.remove(f"{prefix}/{name}" if prefix else name)
        return len(left)

    def _path(self, name: str) -> str:
        return f"{self._root}/{key_of(name)}" if name else self._root

    def _info(self, name: str) -> dict[str, Any] | None:
        with self._saying(name):
            try:
                info = dict(self._waited_for(lambda: self._system.info(self._path(name))))
            except FileNotFoundError:
                return None
        return info if info.get("type") == "file" else None

    def _found(self, prefix: str) -> Iterator[tuple[str, FarFile]]:
        top = self._path(prefix)
        with self._saying(prefix):
            try:
                found = self._waited_for(lambda: self._system.find(top, detail=True))
            except FileNotFoundError:
                return
        for path, info in found.items():
            yield name_of(path.removeprefix(f"{top}/")), _far(info)

    def _digest(self, name: str) -> str:
        digest = new_digest()
        for piece in self.read(name, 0, None):
            digest.update(piece)
        return str(digest.hexdigest())

    def _written(self, source: Source, name: str, flow: Flow) -> tuple[str, bytes]:
        """(xxh64, MD5) of what was written under `name`; where it fails, nothing comes to be."""
        view, md5 = memoryview(bytearray(CHUNK_BYTES)), hashlib.md5(usedforsecurity=False)
        file = self._waited_for(lambda: self._system.open(self._path(name), "wb"))
        try:
            while count := source.read_into(view):
                flow.take(count)
                md5.update(view[:count])
                self._waited_for(partial(file.write, bytes(view[:count])), count)
                flow.done(count)
            found = source.finish()
            self._waited_for(file.close, min(source.bytes, _MOST_AT_ONCE_BYTES))
        except BaseException as error:
            if not isinstance(error, NoAnswer):  # or each of these would wait as long again
                self._let_go(file, name)
            with contextlib.suppress(AttributeError):
                file.closed = True  # or its destructor would make a file of the half
            raise
        return found, md5.digest()

    def _let_go(self, file: Any, name: str) -> None:
        with contextlib.suppress(Exception):
            self._waited_for(file.discard)
        if not self._is_whole_at_once:
            with contextlib.suppress(Exception):
                self._waited_for(lambda: self._system.rm_file(self._path(name)))

    def _piece(self, name: str, begin: int, end: int) -> bytes:
        read = partial(self._system.cat_file, self._path(name), start=begin, end=end)
        return bytes(self._waited_for(read, end - begin))

    def _waited_for(self, do: Callable[[], T], count: int = 0) -> T:
        """What `do` returns, which carries `count` bytes. Raises NoAnswer."""
        return within(limit_s(self._patience_s, count), do)

    @contextlib.contextmanager
    def _saying(self, name: str) -> Iterator[None]:
        """Turn whatever errors there are into ours, in one line without what a library may put into its own."""
        try:
            yield
        except (StoreError, FileFault, Stopped):
            raise
        except NoAnswer as error:
            raise StoreError(f"{self.where}: {error} about {name!a}; try again later") from None
        except FileNotFoundError:
            raise StoreError(f"{self.where}: there is no such bucket or folder: make it, or correct the URL") from None
        except Exception as error:
            what = " ".join(str(one) for one in (type(error).__name__, getattr(error, "code", "")) if one)
            raise StoreError(f"{self.where}: {what} about {name!a}") from None


def _opened(where: str, scheme: str, access: Access) -> tuple[Any, str]:
    """fsspec's own system, and the path in it. Raises what it raises."""
    from fsspec.core import url_to_fs

    # What is wrong is raised too: without a handler it would be printed, with its traceback, as the library's warning.
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())
    limits = {"requests_timeout": _of_each_request(access)} if scheme in _GCS else {}
    system, root = url_to_fs(where, use_listings_cache=False, skip_instance_cache=True, **limits)
    return system, str(root)


def _of_each_request(access: Access) -> Any:
    """What gcsfs gives a request, which has no limit otherwise and is not repeated while it is silent."""
    from aiohttp import ClientTimeout

    return ClientTimeout(
        total=limit_s(access.patience_s, _MOST_AT_ONCE_BYTES),
        sock_connect=access.connect_timeout_s,
        sock_read=access.answer_timeout_s,
    )


def _far(info: dict[str, Any]) -> FarFile:
    changed = info.get("mtime") or info.get("updated") or info.get("created") or 0.0
    if hasattr(changed, "timestamp"):
        changed = changed.timestamp()
    mark = ".".join(str(info[key]) for key in _CHANGES_WITH_EVERY_WRITE if info.get(key))
    return FarFile(int(info["size"]), float(changed) if isinstance(changed, int | float) else 0.0, mark)
