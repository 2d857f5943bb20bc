"""From a URL to a store."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from opsctl.stores.folder import FolderStore
from opsctl.stores.store import Store
from opsctl.stores.types import Access, StoreError

_FORMS = "a destination is /FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or another fsspec URL"


def open_store(url: str, access: Access | None = None) -> Store:  # noqa: ARG001 - a folder needs none
    """The store behind `/folder`, `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or another fsspec URL.

    Nothing is asked of it yet. Raises StoreError where there can be no such store, or a package is missing.
    """
    if url.startswith("/"):
        return Store(FolderStore(url))
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return Store(FolderStore(unquote(parts.path)))
    raise StoreError(f"{url!a} names no store: {_FORMS}")
