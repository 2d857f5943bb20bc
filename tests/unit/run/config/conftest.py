"""The data files of the small run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.run.config.run_files import write_pair


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    prefix = tmp_path / "data" / "corpus_text_document"
    write_pair(prefix, [1411, 918, 1046])
    return prefix
