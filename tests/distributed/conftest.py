"""One pool of ranks for all distributed tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """`pool.run(world_size, function, *args)`: see tests.distributed.pool."""
    ranks = Pool()
    yield ranks
    ranks.close()
