"""What the tests of backups share: one S3 server for all of them, and no registry of runs of the account."""

from __future__ import annotations

import pytest

from tests.s3_fixtures import bucket as bucket  # fixtures
from tests.s3_fixtures import proxy as proxy
from tests.s3_fixtures import s3 as s3
from tests.s3_fixtures import server as server


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
