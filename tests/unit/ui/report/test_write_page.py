"""The page as a file: what a log or a name holds is text in it, and nothing else runs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
from array import array
from html.parser import HTMLParser
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.ui.report import html_page as writing
from opsctl.ui.report.curves import ALERT, KILL, SAVE, Course, Mark
from opsctl.ui.report.html_page import Figure, Known, PageData, page_html, page_run, write_page
from opsctl.ui.report.rows import Rows, Superseded
from tests.unit.ui.report.test_curves import course_of, line

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>&amp;\u2028'\""
PAGE = Path(writing.__file__).parent / "page"


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.within = ""
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.within = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within in self.texts:
            self.texts[self.within][-1] += data


def parsed(html: str) -> Elements:
    found = Elements()
    found.feed(html)
    return found


def page(name: str, course: Course | None = None) -> str:
    run = page_run(
        name, name, course or course_of(line(1), line(2)), Known(figures=(Figure(name="State", value=name),))
    )
    return page_html(PageData(title=name, made_at="2026-03-01T12:00:00+00:00", runs=[run]))


def test_a_hostile_name_comes_out_as_it_went_in_and_makes_no_element() -> None:
    plain, hostile = parsed(page("tr1")), parsed(page(HOSTILE))
    assert [tag for tag, _ in plain.tags] == [tag for tag, _ in hostile.tags]
    data = json.loads(hostile.texts["script"][0])
    assert data["title"] == data["runs"][0]["name"] == HOSTILE
    assert "<" not in hostile.texts["script"][0] and HOSTILE in hostile.texts["title"][0]


def test_the_policy_names_what_may_run_and_nothing_else() -> None:
    found = parsed(page("tr1"))
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none';") and "unsafe" not in policy
    named = set(re.findall(r"sha256-([^']+)'", policy))
    texts = [*found.texts["script"][1:], *found.texts["style"]]
    digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts}
    assert named == digests and len(texts) == 3


def test_the_page_fetches_nothing() -> None:
    found = parsed(page("tr1"))
    for tag, attrs in found.tags:
        assert not {"src", "srcset", "action", "style", "onload"} & attrs.keys(), tag
        assert (attrs.get("href") or "#").startswith("#"), "links stay in the page"
    own = "\n".join((PAGE / name).read_text() for name in (*writing._MODULES, "page.css"))
    assert not re.search(
        r"fetch\(|XMLHttpRequest|WebSocket|innerHTML|insertAdjacentHTML|eval\(|https?://(?!www\.w3\.org)", own
    )


def test_the_library_is_the_one_whose_checksums_are_on_record() -> None:
    for row in (PAGE / "checksums.txt").read_text().splitlines():
        digest, name = row.split()
        assert hashlib.sha256((PAGE / name).read_bytes()).hexdigest() == digest, name
    assert "MIT License" in (PAGE / "uPlot.LICENSE").read_text() and "Leon Sorokin" in page("tr1")


def test_columns_are_numbers_of_eight_and_four_bytes() -> None:
    course = course_of(line(1, loss=2.5), line(2, loss=None))
    run = json.loads(parsed(page("tr1", course)).texts["script"][0])["runs"][0]
    assert struct.unpack("<2d", base64.b64decode(run["columns"]["tokens"])) == (512.0, 1024.0)
    first, second = struct.unpack("<2f", base64.b64decode(run["columns"]["loss"]))
    assert first == 2.5 and second != second


def test_300_000_iterations_are_a_page_of_less_than_5_mb() -> None:
    one, count = course_of(line(1)).rows.numbers, 300_000
    numbers = one * count
    numbers[:: len(one)] = array("d", range(1, count + 1))
    again = [Superseded(1, count, Rows(numbers)) for _ in range(2)]
    course = Course(Rows(numbers), superseded=again)
    assert len(page("tr1", course)) < 5_000_000


def test_a_page_replaces_the_one_before_and_a_place_that_takes_none_is_said(tmp_path: Path) -> None:
    where = tmp_path / "a.html"
    one, two = "<!DOCTYPE html>one", "<!DOCTYPE html>two"
    assert write_page(one, where, None) == where and write_page(two, where, None) == where
    assert where.read_text() == two and list(tmp_path.iterdir()) == [where]
    with pytest.raises(OpsctlError, match=r"nowhere/a\.html: .*--output FILE"):
        write_page("x", tmp_path / "nowhere" / "a.html", None)


@pytest.mark.parametrize("taken", ["the log", "a link", "another file", "a device"])
def test_a_page_takes_no_other_files_place(taken: str, tmp_path: Path) -> None:
    log, where = tmp_path / "log.txt", tmp_path / "a.html"
    log.write_text("<!DOCTYPE html> iteration 1" if taken != "another file" else "x")
    if taken == "another file":
        where.write_text("months of work")
    elif taken == "a device":
        os.mkfifo(where)
    elif taken == "a link":
        where.hardlink_to(log)
    else:
        where = log
    before = where.read_bytes() if where.is_file() else b""
    with pytest.raises(OpsctlError, match=r"--output FILE"):
        write_page("<!DOCTYPE html>", where, None, [log])
    assert (where.read_bytes() if where.is_file() else b"") == before


def test_an_evaluation_whose_loss_is_no_number_has_none() -> None:
    said = " valid loss at iteration {} | lm loss value: {} | lm loss PPL: 4.5E+00 | "
    course = course_of(line(1), said.format(1, "1.5E+00"), line(2), said.format(2, "nan"))
    run = json.loads(parsed(page("tr1", course)).texts["script"][0])["runs"][0]
    assert run["evaluations"] == {"valid": [[1.0, 2.0], [1.5, None]]}


def test_saves_take_no_other_marks_place_and_what_is_left_out_is_counted() -> None:
    count = writing.MOST_MARKS + 100
    course = course_of(*(line(i) for i in range(1, count + 1)))
    course.marks = [Mark(kind, i, f"{kind} {i}") for i in range(1, count + 1) for kind in (SAVE, ALERT)]
    course.marks.append(Mark(KILL, count, "left at the kill switch"))
    run = page_run("tr1", "tr1", course, Known())
    told = [mark.iteration for mark in run.marks if mark.kind != SAVE]
    assert (run.saves, run.marks_left_out) == (count, 101) and len(told) == writing.MOST_MARKS
    assert told[-1] == count and min(told) == 102


def test_the_place_of_a_value_in_a_column_that_is_not_known_from_its_beginning_is_found() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    source = re.sub(r"^export ", "", (PAGE / "data.js").read_text(), flags=re.MULTILINE)
    functions = source[source.index("// The place of") : source.index("const has")]
    asked = """
    const tokens = [...Array(80).fill(NaN), ...Array.from({ length: 20 }, (_, at) => 1000 + at)];
    const run = { columns: { iteration: Array.from({ length: 100 }, (_, at) => at + 1), tokens } };
    console.log(JSON.stringify([placeOf(tokens, 1000), placeOf(tokens, 1010.5), placeOf(tokens, 2000),
        String(along(run, "tokens", 40)), along(run, "tokens", 90)]));
    """
    said = subprocess.run([node, "-e", functions + asked], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(said.stdout) == [80, 90, 99, "NaN", 1009]
