"""What the tests of backups share: one S3 server for all of them."""

from __future__ import annotations

from tests.s3_fixtures import bucket as bucket  # fixtures
from tests.s3_fixtures import proxy as proxy
from tests.s3_fixtures import s3 as s3
from tests.s3_fixtures import server as server
