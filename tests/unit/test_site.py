"""The pages of docs/ make a site: every link and anchor leads somewhere, every page has its place in the menu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", str(tmp_path / "site")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        for asked in ('src="http', '<link rel="stylesheet" href="http', "fonts.g"):
            assert asked not in page.read_text(), f"{page.name} would fetch {asked}"


def test_the_index_names_every_page_of_the_menu() -> None:
    menu = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    named = re.findall(r"\]\(([^)#]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    assert sorted(named) == sorted({*menu} - {"index.md"})
