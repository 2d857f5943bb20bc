"""From a URL to a store."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from opsctl.transfer.object_store.folder import FolderStore
from opsctl.transfer.object_store.fsspec_store import FsspecStore
from opsctl.transfer.object_store.s3 import S3Store
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Access, StoreError

_FORMS = "a destination is /FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or another fsspec URL"


def open_store(url: str, access: Access | None = None) -> Store:
    """The store behind `/folder`, `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or another fsspec URL.

    Only of a folder it is known then that it is there. Raises StoreError where there can be no such store, or a package
    is missing.
    """
    if url.startswith("/"):
        return Store(FolderStore(url))
    parts = _parts(url)
    if parts.scheme == "file" and not parts.netloc:
        return Store(FolderStore(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        return Store(S3Store(url, parts.netloc, parts.path.strip("/"), access or Access()))
    if parts.scheme and parts.netloc and parts.scheme not in ("s3", "file"):
        return Store(FsspecStore(url, parts.scheme, access or Access()))
    raise StoreError(f"{url!a} names no store: {_FORMS}")


def refuse_secret(url: str) -> None:
    """Raise StoreError for a URL with what may be a secret in it. The text has none of it."""
    if not url.startswith("/"):
        _parts(url)


def _parts(url: str) -> SplitResult:
    """The parts of a URL in which there is no secret."""
    try:
        parts = urlsplit(url)
        has_secret = parts.username is not None or bool(parts.query or parts.fragment)
    except ValueError:
        raise StoreError(f"a destination's URL cannot be read: {_FORMS}") from None
    if has_secret:
        raise StoreError(
            f"a destination's URL, {parts.scheme}://..., has a user, a password, a query or a # in it: "
            "everybody sees URLs; give credentials by the store's own variables and files"
        )
    return parts
