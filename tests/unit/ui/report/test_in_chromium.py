"""The page in a real browser, by what a person does there: Debian's Chromium, without a window."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import main
from opsctl.run.logs.lines import iteration_losses
from opsctl.ui import report
from tests.unit.ui.report.made import BEGAN, log_text, made_run

if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
    pytest.skip("no Chromium here: apt-get install chromium chromium-driver", allow_module_level=True)

from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

ITERATIONS = 1200
AXE = Path(sys.prefix) / "axe-core" / "axe.min.js"
CURVES = ["loss", "learning_rate", "batch", "grad_norm", "tflops", "mfu", "tokens_per_second", "seconds"]


class Browser:
    """A browser with one of the pages open."""

    def __init__(self, driver: webdriver.Chrome, pages: dict[str, Path]) -> None:
        self.driver, self.pages = driver, pages

    def open(self, page: str, address: str = "", width: int = 1300, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.driver.get("about:blank")
        self.driver.get(f"file://{self.pages[page]}#{address}")
        self.until(lambda: self.run("return document.documentElement.dataset.ready") == "yes")

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def labelled(self, label: str) -> WebElement:
        """The control that a person finds by the words beside it."""
        return self.driver.find_element(By.XPATH, f"//label[contains(., '{label}')]//*[self::input or self::select]")

    def pressed(self, title: str) -> None:
        self.one(f"button[title='{title}']").click()

    def reading(self, curve: str) -> str:
        return self.one(f"[data-curve={curve}] .reading").text

    @property
    def where(self) -> str:
        return self.one(".where").text

    def until(self, holds: Callable[[], object], seconds: float = 10.0) -> None:
        """Waits for what the page does a frame later."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.02)

    def problems(self) -> list[tuple[str, str]]:
        """Return what axe finds, with the element."""
        self.run(AXE.read_text())
        found = self.driver.execute_async_script("axe.run().then(arguments[0])")["violations"]
        return [(one["id"], one["nodes"][0]["html"][:200]) for one in found]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run's page, and one that compares two logs."""
    folder = tmp_path_factory.mktemp("pages")
    made_run(folder, ITERATIONS)
    for name, iterations in (("one.txt", 300), ("</script><b>two", 200)):
        (folder / name.replace("/", "_")).write_text(log_text(iterations))
    logs = [words for path in sorted(folder.glob("*e.txt")) for words in ("--log", str(path))]
    logs += ["--log", str(folder / "<_script><b>two")]
    run = ["--run", str(folder / "run.toml"), "--output", str(folder / "run.html")]
    for words in (run, [*logs, "--output", str(folder / "two.html")]):
        with pytest.raises(SystemExit) as stop:
            main(["report", *words])
        assert not stop.value.code
    return {"run": folder / "run.html", "two": folder / "two.html", "log": folder / "output" / "logs" / "main_log.txt"}


@pytest.fixture(scope="module")
def browser(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    words = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en-GB"]
    words += [f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]
    for word in [*words, *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver, pages)
    finally:
        driver.quit()


def test_it_opens_from_disk_asks_for_nothing_and_no_name_in_it_does_anything(browser: Browser) -> None:
    for page in ("run", "two"):
        browser.open(page)
        assert browser.driver.get_log("browser") == []  # type: ignore[no-untyped-call]
        assert browser.run("return performance.getEntriesByType('resource').length") == 0
        assert browser.run("return document.querySelectorAll('img, b').length") == 0
        told = browser.one("#happenings").text if page == "run" else browser.one("h1").text
        assert ("</script><img src=x onerror=alert(1)> team" if page == "run" else "<_script><b>two") in told


def test_every_curve_is_there_and_says_in_words_what_it_shows(browser: Browser) -> None:
    browser.open("run")
    shown = browser.driver.find_elements(By.CSS_SELECTOR, "#curves figure")
    assert [one.get_dom_attribute("data-curve") for one in shown] == CURVES
    told = browser.one("[data-curve=loss] .canvas").get_dom_attribute("aria-label") or ""
    assert re.match(r".*\btr-test: .*\b1\d\.\d+ .*\b[12]\.\d+, .*\b1\.\d+ .*\b1\d\.\d+\b", told)


def test_a_hover_says_what_the_log_says_of_that_iteration_in_all_curves(browser: Browser) -> None:
    browser.open("run")
    losses = dict(iteration_losses(browser.pages["log"].read_text()))
    over = browser.one("[data-curve=loss] .u-over")
    before = browser.reading("learning_rate")
    ActionChains(browser.driver).move_to_element_with_offset(over, -200, 0).perform()
    browser.until(lambda: browser.where and browser.reading("learning_rate") != before)
    iteration = int(browser.where.split(",")[0].removeprefix("iteration "))
    assert 100 < iteration < ITERATIONS and f"{losses[iteration]:.4f}".startswith(browser.reading("loss")[:5])


def test_the_head_has_the_numbers_that_a_reader_asks_first(browser: Browser) -> None:
    browser.open("run")
    names = [one.text for one in browser.driver.find_elements(By.CSS_SELECTOR, ".figures dt")]
    assert names == ["State", "Progress", "Loss", "Tokens", "Tokens per second", "MFU", "Goodput"]
    assert f"iteration {ITERATIONS:,} of {ITERATIONS:,}" in browser.one(".figures").text


def test_a_log_axis_is_one_charts_and_fits_its_values(browser: Browser) -> None:
    browser.open("run", "log=grad_norm")
    pressed = "return [...document.querySelectorAll('.log[aria-pressed=true]')].map((one) => one.closest('figure').id)"
    assert browser.run(pressed) == ["grad_norm"]
    module = (Path(report.__file__).parent / "page" / "curves.js").read_text()
    script = "\n".join(re.findall(r"^const (?:yRange|logTicks) = .*?^};\n", module, flags=re.MULTILINE | re.DOTALL))
    low, high = browser.run(script + "return yRange(1.9, 11, true)")
    assert 1.5 < low < 1.9 and 11 < high < 13
    assert browser.run(script + "return logTicks(1.7, 12)") == [2, 5, 10]
    assert browser.run(script + "return logTicks(0.012, 900)") == [0.1, 1, 10, 100]
    assert len(browser.run(script + "return logTicks(1.91, 1.99)")) >= 3


def test_a_link_leads_to_a_chart(browser: Browser) -> None:
    browser.open("run", "mfu&smooth=0")
    top = "return document.getElementById('mfu').getBoundingClientRect().top"
    browser.until(lambda: browser.run(top) < 300)
    browser.run("arguments[0].click()", browser.one("#tflops h3 a"))
    browser.until(lambda: "#tflops&smooth=0" in browser.driver.current_url)


def test_controls_are_folded_on_a_phone(browser: Browser) -> None:
    browser.open("run")
    assert browser.one("#axis").is_displayed() and not browser.one("summary").is_displayed()
    browser.open("run", width=390)
    assert not browser.one("#axis").is_displayed()
    browser.one("summary").click()
    assert browser.one("#axis").is_displayed()


def test_dragging_zooms_all_curves_and_a_double_click_shows_all_again(browser: Browser) -> None:
    browser.open("run")
    over = browser.one("[data-curve=grad_norm] .u-over")
    ActionChains(browser.driver).move_to_element_with_offset(over, -50, 0).click_and_hold().move_by_offset(
        100, 0
    ).release().perform()
    browser.until(lambda: "from=" in browser.driver.current_url)
    low, high = map(int, re.findall(r"from=(\d+)-(\d+)", browser.driver.current_url)[0])
    assert 300 < low < high < 900
    slider = browser.one("#position")
    slider.send_keys(Keys.HOME)
    assert abs(int(browser.where.split(",")[0].removeprefix("iteration ")) - low) <= 1, "the curves begin there"
    ActionChains(browser.driver).double_click(browser.one("[data-curve=loss] .u-over")).perform()
    browser.until(lambda: "from=" not in browser.driver.current_url)


def _first_day() -> str:
    """Return the date on which the run began, as the browser shows it in this machine's time zone."""
    began = BEGAN.astimezone()
    return f"{began.day} {began:%b %Y}"


def test_everything_can_be_done_by_keyboard(browser: Browser) -> None:
    browser.open("run")
    slider = browser.one("#position")
    slider.send_keys(Keys.HOME)
    assert browser.where.startswith(f"iteration 1, {_first_day()}") and browser.reading("batch") == "16 samples"
    assert slider.get_attribute("aria-valuetext") == browser.where
    first = browser.where
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.where != first
    browser.one("#smoothing").send_keys(Keys.END)
    assert "(mean " in browser.reading("loss") and "(mean " not in browser.reading("batch")
    browser.pressed("Logarithmic axis: Loss")
    browser.until(lambda: "log=loss" in browser.driver.current_url)
    browser.one("button[title='Zoom in']").send_keys(Keys.ENTER)
    browser.until(lambda: "from=" in browser.driver.current_url)
    reached = set()
    browser.run("document.querySelector('.skip').focus()")
    for _ in range(22):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(browser.run("return document.activeElement.id || document.activeElement.title"))
    assert {"axis", "smoothing", "theme", "position", "Zoom in", "Show all"} <= reached


def test_the_axis_may_be_samples_tokens_or_time(browser: Browser) -> None:
    browser.open("run")
    choice = Select(browser.one("#axis"))
    assert [one.text for one in choice.options] == ["iterations", "samples", "tokens", "time"]
    said = {}
    for name in ("samples", "tokens", "time"):
        choice.select_by_visible_text(name)
        browser.one("#position").send_keys(Keys.HOME)
        said[name] = browser.where
    assert said["samples"].startswith("sample 16, iteration 1,")
    assert said["tokens"].startswith("token 32,768, iteration 1,")
    assert said["time"].startswith(f"{_first_day()}, ") and said["time"].endswith("iteration 1")


def test_marks_are_drawn_until_they_are_turned_off(browser: Browser) -> None:
    browser.open("run")
    drawn = "return document.querySelector('[data-curve=mfu] canvas').toDataURL()"
    before = browser.run(drawn)
    for kind in ("starts", "alerts", "checkpoints", "kill switch", "spikes", "revisions"):
        browser.labelled(kind).click()
        browser.until(lambda last=before: browser.run(drawn) != last)  # type: ignore[misc]
        before = browser.run(drawn)


def test_marks_of_a_kind_that_stand_close_are_ticks_that_hide_no_curve(browser: Browser) -> None:
    module = (Path(report.__file__).parent / "page" / "drawn.js").read_text()
    script = re.sub(r"^import [^;]*;\n|^export ", "", module, flags=re.MULTILINE)
    drawn = """
        const [starts] = arguments, tops = [], MARKS = { start: { letter: "S", dash: [] } };
        const css = () => "red", along = (run, axis, iteration) => iteration;
        const ctx = Object.fromEntries(["save", "beginPath", "rect", "clip", "restore", "setLineDash", "stroke",
            "lineTo", "fillText"].map((name) => [name, () => {}]));
        ctx.moveTo = (x, y) => tops.push(y);
        const plot = { ctx, bbox: { left: 0, top: 0, width: 400, height: 100 }, valToPos: (value) => value };
        const run = { marks: starts.map((iteration) => ({ kind: "start", iteration })) };
        drawMarks(plot, [run], { axis: "iteration", kinds: new Set(["start"]) });
        return tops;
    """
    browser.open("run")
    assert browser.run(script + drawn, [10, 100, 102, 104, 200, 200]) == [0, 92, 92, 92, 0, 0]


def test_what_happened_leads_to_its_place_in_the_curves(browser: Browser) -> None:
    browser.open("run")
    row = browser.driver.find_element(By.XPATH, "//td[contains(., 'left at the kill switch')]/..")
    iteration = row.find_element(By.TAG_NAME, "button").text
    browser.run("arguments[0].click()", row.find_element(By.TAG_NAME, "button"))
    assert browser.where.startswith(f"iteration {iteration},")
    browser.until(lambda: "from=" in browser.driver.current_url)
    assert browser.run("return document.activeElement.id") == "curves"


def test_runs_are_compared_and_one_can_be_left_out(browser: Browser) -> None:
    browser.open("two")
    assert "one.txt" in browser.reading("loss") and "two" in browser.reading("loss")
    browser.labelled("one.txt").click()
    assert "one.txt" not in browser.reading("loss"), "of one run no name is told"
    browser.until(lambda: "hide=0" in browser.driver.current_url)


def test_a_reload_shows_what_was_shown(browser: Browser) -> None:
    browser.open("run", "x=tokens&smooth=30&log=loss&theme=dark")
    browser.one("button[title='Zoom to the newest tenth']").click()
    browser.until(lambda: "from=" in browser.driver.current_url)
    browser.driver.refresh()
    browser.until(lambda: browser.run("return document.documentElement.dataset.ready") == "yes")
    assert Select(browser.one("#axis")).first_selected_option.text == "tokens"
    assert browser.one("#loss .log").get_attribute("aria-pressed") == "true"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"


def test_colours_are_the_readers_until_he_says_otherwise(browser: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.open("run", dark=True)
    assert browser.run(paper) == "rgb(13, 17, 23)"
    Select(browser.one("#theme")).select_by_visible_text("light")
    assert browser.run(paper) == "rgb(255, 255, 255)"


def test_on_a_phone_nothing_is_wider_than_the_screen_and_a_tap_reads_a_curve(browser: Browser) -> None:
    browser.open("run", width=390)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    right = (
        "return Math.max(...[...document.querySelectorAll('.canvas')].map((one) => one.getBoundingClientRect().right))"
    )
    assert browser.run(right) <= 390
    browser.run("arguments[0].scrollIntoView({block: 'center'})", browser.one("[data-curve=loss]"))
    browser.one("[data-curve=loss] .u-over").click()
    browser.until(lambda: browser.where.startswith("iteration "))


def test_two_fingers_zoom_all_curves_and_one_scrolls_the_page(browser: Browser) -> None:
    browser.open("run", width=390)
    browser.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})

    def touch(kind: str, *fingers: float, below: float = 60) -> None:
        box = browser.run("return document.querySelector('[data-curve=loss] .u-over').getBoundingClientRect().toJSON()")
        points = [
            {"x": box["left"] + share * box["width"], "y": box["top"] + below, "id": number}
            for number, share in enumerate(fingers)
        ]
        browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    browser.run("document.querySelector('[data-curve=loss]').scrollIntoView({block: 'start'})")
    touch("touchStart", 0.4)
    touch("touchStart", 0.4, 0.6)
    for by in (0.05, 0.1, 0.2):
        touch("touchMove", 0.4 - by, 0.6 + by)
    touch("touchEnd")
    browser.until(lambda: "from=" in browser.driver.current_url)
    low, high = map(int, re.findall(r"from=(\d+)-(\d+)", browser.driver.current_url)[0])
    # What was under 0.4 and 0.6 of the width is now under 0.2 and 0.8.
    assert abs(low - ITERATIONS / 3) < 12 and abs(high - ITERATIONS * 2 / 3) < 12
    before = browser.run("return scrollY")
    touch("touchStart", 0.5, below=180)
    for below in (150, 100, 40):
        box_top = browser.run("return document.querySelector('[data-curve=loss] .u-over').getBoundingClientRect().top")
        point = {"x": 200, "y": box_top + below, "id": 0}
        browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    touch("touchEnd")
    browser.until(lambda: browser.run("return scrollY") > before)
    assert f"from={low}-{high}" in browser.driver.current_url, "one finger zooms nothing"
    browser.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_what_was_trained_again_is_drawn_faintly_until_it_is_turned_off_and_told_in_words(browser: Browser) -> None:
    browser.open("run")
    again = re.search(r"Iterations done again\s+([\d,]+), \S+ of training", browser.one("#tables").text)
    assert again is not None
    box = browser.labelled(f"trained again ({again[1]} iterations)")
    told = "return document.querySelector('[data-curve=loss] .canvas').getAttribute('aria-label')"
    drawn = "return document.querySelector('[data-curve=loss] canvas').toDataURL()"
    before = browser.run(drawn)
    words = browser.run(told)
    box.click()
    assert browser.run(drawn) != before and len(browser.run(told)) < len(words), "the description has lost a part"
    browser.until(lambda: "again=0" in browser.driver.current_url)
    browser.driver.refresh()
    browser.until(lambda: browser.run("return document.documentElement.dataset.ready") == "yes")
    assert not browser.labelled("trained again").is_selected()


def test_records_are_told_in_tables_and_the_time_as_a_line(browser: Browser) -> None:
    browser.open("run")
    titles = [one.text for one in browser.driver.find_elements(By.CSS_SELECTOR, "#tables caption")]
    assert len(titles) >= 7 and {"Goodput", "Attempts", "Nodes"} < set(titles)
    assert "rank 17 lost </script><b>" in browser.one("[aria-label=Nodes]").text
    assert re.search(r"\d.*\d", browser.one(".timeline svg").get_dom_attribute("aria-label") or "")


@pytest.mark.parametrize(("page", "width", "dark"), [("run", 1300, False), ("two", 1300, True), ("run", 390, True)])
def test_axe_finds_nothing(browser: Browser, page: str, width: int, dark: bool) -> None:
    if not AXE.exists():
        pytest.skip(f"no axe-core at {AXE}: .ci/setup dev puts it there, with npm")
    browser.open(page, width=width, dark=dark)
    assert browser.problems() == []


def test_the_data_in_the_page_is_json_that_anybody_can_read(pages: dict[str, Path]) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', pages["run"].read_text())
    assert found is not None
    assert json.loads(found[1])["runs"][0]["lines"] == ITERATIONS
