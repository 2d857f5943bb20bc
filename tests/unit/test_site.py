"""The pages of docs/ make a site: every link and anchor leads somewhere, every page has its place in the menu."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.reference import on_page_markdown
from opsctl.cli import COMMANDS
from opsctl.cli.json_schema import all_printed
from opsctl.monitoring.registry import DETECTORS, command_name
from opsctl.ui.doctor.gather import CHECKS
from trainer.recipe.option_table import OPTIONS

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    """A reference page as the site has it."""
    return on_page_markdown((ROOT / "docs" / f"{name}.md").read_text())


def test_the_page_of_commands_has_each_once_as_help_writes_it() -> None:
    import markdown  # what mkdocs reads pages with

    headings = re.findall(r"^#{3,} (opsctl .+)$", page("commands"), re.MULTILINE)
    assert {f"opsctl {name}" for name in COMMANDS} <= set(headings)
    assert len(headings) == len(set(headings))
    html = markdown.markdown(page("commands"), extensions=["tables", "fenced_code"])
    assert "demo, llama-1B" in html and "[default: demo]" in html
    assert re.findall(r"<(?!/?(?:h\d|p|code|pre|table|thead|tbody|tr|th|td|a|em|strong|ul|li|br)\b)", html) == []


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("json", [one.command for one in all_printed()]),
        ("watch", [command_name(one.name) for one in DETECTORS]),
        ("doctor", [check.name for check in CHECKS]),
        ("trainer-options", [option.name for option in OPTIONS]),
    ],
)
def test_a_reference_page_has_all_that_the_program_has(name: str, rows: list[str]) -> None:
    text = page(name)
    assert "<!-- made" not in text
    assert [row for row in rows if not re.search(rf"^\| `?(opsctl )?{re.escape(row)}`?[ ,]", text, re.MULTILINE)] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, which must give no warning."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.nightly
def test_the_site_is_built_without_a_warning_and_fetches_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert json.loads((site / "schemas" / "1.json").read_text())["$defs"]
    for page in pages:
        for asked in ('src="http', '<link rel="stylesheet" href="http', "fonts.g"):
            assert asked not in page.read_text(), f"{page.name} would fetch {asked}"


def test_the_index_names_every_page_of_the_menu() -> None:
    menu = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    named = re.findall(r"\]\(([^)#]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    assert sorted(named) == sorted({*menu} - {"index.md"})


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("chromedriver"), reason="no chromedriver")
def test_the_search_of_the_site_works_from_disk(site: Path, tmp_path: Path) -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.get((site / "tasks" / "on-call.html").as_uri())
        driver.find_element(By.CSS_SELECTOR, "label[for=__search]").click()
        asked = driver.find_element(By.CSS_SELECTOR, "input.md-search__input")
        WebDriverWait(driver, 30).until(lambda _: asked.is_displayed())
        asked.send_keys("exclusion")
        links = (By.CSS_SELECTOR, "a.md-search-result__link")
        found = WebDriverWait(driver, 30).until(lambda shown: shown.find_elements(*links))
        assert any("nodes.html" in str(link.get_attribute("href")) for link in found)
    finally:
        driver.quit()
