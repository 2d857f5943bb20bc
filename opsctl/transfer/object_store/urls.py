"""The store behind a destination's URL."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from opsctl.transfer.object_store.folder import FolderStore
from opsctl.transfer.object_store.fsspec_store import SCHEMES, FsspecStore
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Access, StoreError

_FORMS = "a destination is /FOLDER, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"


def open_store(url: str, access: Access | None = None) -> Store:
    """Return the store behind `/folder`, `file:///folder`, `s3://bucket/prefix` or `gs://bucket/prefix`.

    Only a folder is known to be there then. Raises StoreError where there can be no such store, or a package is
    missing.
    """
    if url.startswith("/"):
        return FolderStore(url)
    parts = _parts(url)
    if parts.scheme == "file" and not parts.netloc:
        return FolderStore(unquote(parts.path))
    if parts.scheme in SCHEMES and parts.netloc:
        return FsspecStore(url, parts.scheme, access or Access())
    raise StoreError(f"{url!a} names no store: {_FORMS}")


def refuse_secret(url: str) -> None:
    """Raise StoreError for a URL that may have a secret in it. The text has none of it."""
    if not url.startswith("/"):
        _parts(url)


def _parts(url: str) -> SplitResult:
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
