"""The run file's page names every table and key there is."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.config.load import ENVIRONMENT_KEYS
from opsctl.run.config.toml_types import STRUCTS, TABLES, keys_of

PAGE = Path(__file__).parents[4] / "docs" / "run-file.md"


def test_every_table_and_key_is_described() -> None:
    text = PAGE.read_text()
    missing = [f"[{table}]" for table in TABLES if f"[{table}]" not in text]
    missing += [key for table in STRUCTS for key in keys_of(table) if f"`{key}`" not in text]
    missing += [key for key in ENVIRONMENT_KEYS if f"`OPSCTL_{key.upper()}`" not in text]
    assert missing == []
