"""The runs and destinations of the backup commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from opsctl.cli.progress import of_bytes
from opsctl.core.errors import OpsctlError, UsageError
from opsctl.run.checkpoints.backups import places_named, plain_url
from opsctl.run.state.run_view import RunView
from opsctl.transfer.backups.destination import Destination
from opsctl.transfer.backups.schedule import Policy
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Access
from opsctl.transfer.object_store.urls import open_store
from trainer.formats.byte_sizes import size_in_bytes


def flow_of(limit: str | None, total: int | None = None) -> Flow:
    """Within the limit, telling how far it is. Raises UsageError for a limit that is none."""
    try:
        return Flow(size_in_bytes(limit) if limit else None, of_bytes(total))
    except ValueError as error:
        raise UsageError(f"--limit {error}") from None


def far_store(url: str, endpoint: str | None = None) -> Store:
    """Return the store of a URL from a command line. Raises StoreError."""
    return open_store(plain_url(url), Access(endpoint=endpoint))


def named_by(run: RunView) -> frozenset[str] | None:
    """Destinations that [backup] to names; None where what is published cannot be read."""
    try:
        return places_named(run)
    except OpsctlError:
        return None


@contextlib.contextmanager
def opened(run: RunView, policy: Policy, url: str) -> Iterator[Destination]:
    """One of the run's destinations. Raises StoreError."""
    with far_store(url, policy.table.endpoint) as store:
        yield Destination(run.paths, run.table.name, url, store, flow_of(policy.table.limit))
