"""The simulated months (`benchmarks.simulate`), compared with known results, and the functions that they use."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from unittest import mock

import pytest

from benchmarks.desk.log import moment
from benchmarks.desk.shapes import DAY_S, HOUR_S
from benchmarks.simulate import calibration, deciding
from benchmarks.simulate.deciding import Exclusions
from benchmarks.simulate.experiments import Between, Summary
from benchmarks.simulate.outcome import Outcome, months, simulate
from benchmarks.simulate.page import inputs, page, picture
from benchmarks.simulate.picture import Bars, Curve, drawn
from benchmarks.simulate.policies import EIGHT_HOURS, OURS, PLAIN, PLAIN_TODAY, WAYS, WITHOUT
from benchmarks.simulate.setting import CALM, Rates, Setting, bloom, set_aside, shared
from benchmarks.simulate.study import Study
from benchmarks.simulate.words import PARTS
from opsctl.diagnosis.goodput.report import best_interval_s, lost_share
from opsctl.diagnosis.nodes.judging import ends_of, judge
from opsctl.diagnosis.probe.report import chosen
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause

DOCS = Path(__file__).resolve().parents[4] / "docs"
#: Nothing but going on after a failure.
RESTARTS = replace(PLAIN, name="restarts", refill=True, hang_watch=True)
ROUGH = replace(Rates(), failures=0.05, broken_every_s=4 * DAY_S, emergency_every_s=6 * DAY_S, stalls_every_s=DAY_S)


def unhindered(rates: Rates, days: float, interval_s: float) -> Setting:
    """Return one task without an end or an evaluation, which starts at once and has spare nodes."""
    setting = set_aside(48, rates, days)
    endless = replace(setting, time_limit_s=1e9, eval_interval=10**9, start_s=(0.0, 0.0), partition=600)
    return replace(endless, fixed_interval_s=interval_s)


@pytest.mark.parametrize("interval_s", [600.0, 10_500.0])
def test_without_failures_only_saves_take_time(interval_s: float) -> None:
    setting = unhindered(CALM, 91.0, interval_s)
    expected = interval_s / (interval_s + setting.save_s)
    # The newest stretch has no line in the log yet.
    assert simulate(setting, PLAIN, 0).goodput == pytest.approx(expected, abs=interval_s / 91 / DAY_S + 1e-4)


@pytest.mark.nightly
def test_dalys_interval_loses_least_and_as_much_as_he_says() -> None:
    between_s = 2 * HOUR_S
    rates = replace(CALM, failures=DAY_S / between_s / 48)
    best_s = best_interval_s(40.0, between_s)

    def goodput(interval_s: float) -> float:
        with (
            mock.patch("benchmarks.simulate.training.TEARDOWN_S", 0.0),
            mock.patch("benchmarks.simulate.setting.Setting.draw_wait_s", return_value=0.0),
        ):
            setting = unhindered(rates, 20.0, interval_s)
            return fmean(simulate(setting, RESTARTS, seed).goodput for seed in range(3))

    at_best = goodput(best_s)
    assert at_best > goodput(best_s / 3) + 0.02
    assert at_best > goodput(best_s * 3) + 0.02
    assert 1 - at_best == pytest.approx(lost_share(best_s, 40.0, between_s), abs=0.02)


@pytest.mark.parametrize("way", [OURS, PLAIN, PLAIN_TODAY, EIGHT_HOURS], ids=lambda way: way.name)
@pytest.mark.parametrize("setting", [set_aside, shared])
def test_all_time_is_accounted_for_and_what_trained_is_what_counts(
    way: object, setting: Callable[..., Setting]
) -> None:
    found = simulate(setting(48, replace(ROUGH, slow_share=0.0, slowed=0.0), 21.0), way, 7)  # type: ignore[arg-type]
    parts = {name: share for name, share in found.shares.items() if name != "slowed"}
    assert math.fsum(parts.values()) == pytest.approx(1.0, abs=1e-6)
    assert min(parts.values()) >= 0.0 and found.attempts > 10
    assert found.shares["slowed"] == pytest.approx(0.0, abs=2e-3)


@pytest.mark.nightly
def test_a_seed_gives_the_same_months_in_every_process() -> None:
    told = (
        "from benchmarks.simulate.outcome import simulate; from benchmarks.simulate.policies import OURS; "
        "from benchmarks.simulate.setting import set_aside; print(simulate(set_aside(200, days=9.0), OURS, 3))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", told],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=DOCS.parent,
        ).stdout
        for number in ("1", "2")
    }
    assert found == {f"{simulate(set_aside(200, days=9.0), OURS, 3)}\n"}


def test_ours_decides_by_the_products_functions() -> None:
    asked = {
        "benchmarks.simulate.queue": ("of_the_queue", "stopped_by_failures"),
        "benchmarks.simulate.run": ("failed_too_often", "after_failure", "is_to_be_tested", "chosen"),
        "benchmarks.simulate.people": ("save_interval",),
        "benchmarks.simulate.deciding": ("judge_nodes", "judge_probe", "is_hung", "slow_nodes"),
        "benchmarks.simulate.outcome": ("account",),
    }
    deciding.silence_of.cache_clear()
    spies = []
    for module, names in asked.items():
        for name in names:
            real = getattr(sys.modules[module], name)
            spy = mock.patch(f"{module}.{name}", side_effect=real)
            spies.append((name, spy.start()))
    try:
        simulate(set_aside(96, replace(ROUGH, slow_share=0.05), 12.0), OURS, 1)
    finally:
        mock.patch.stopall()
    assert [name for name, spy in spies if not spy.called] == []


def test_what_is_judged_bit_by_bit_is_what_all_of_it_comes_to() -> None:
    dice, names = random.Random(5), [f"n{number}" for number in range(40)]
    kept, ends, at = Exclusions(names, needed=30), [], 0.0
    for number in range(60):
        at += dice.expovariate(1 / (8 * HOUR_S))
        node = dice.choice(names[:12])
        sure = dice.choice((0.6, 0.7, 0.9))
        ended = Attempt(
            number=number,
            id=f"a{number}",
            job_id=number + 1,
            nodes=tuple(names),
            closed_at=moment(at),
            reason=Ending.FAILED,
            verdict=deciding.said_by_triage(dice.choice((Cause.NETWORK, Cause.GPU_ECC, Cause.NCCL)), node, sure),
        )
        kept.ended(ended)
        ends += ends_of([ended])
        kept.stay_off((), moment(at))
        before = list(kept._known.values())
        evidence = [line for lines in kept._evidence.values() for line in lines]
        whole = judge(evidence, ends, moment(at), names, kept.policy, before)
        assert {one.node for one in whole if one.stands(moment(at))} == kept.standing(moment(at))
    assert len(kept.standing(moment(at))) > 1


@pytest.mark.nightly
def test_more_of_what_goes_wrong_never_trains_more() -> None:
    worse = replace(Rates(), failures=4 * Rates().failures)
    for way in (OURS, PLAIN):
        usual = fmean(simulate(set_aside(96, days=25.0), way, seed).goodput for seed in range(3))
        assert fmean(simulate(set_aside(96, worse, 25.0), way, seed).goodput for seed in range(3)) < usual


def test_the_picture_is_drawn_with_its_numbers() -> None:
    curve = Curve("ours & more", [(50, Between(0.9, 0.01)), (1000, Between(0.8, None))])
    root = ElementTree.fromstring(drawn({"set aside": [curve]}, [Bars("worth", [("probe", Between(-0.01, 0.02))])]))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"ours & more", "1,000", "probe", "-1.0"} <= set(words)
    marks = [
        float(one.attrib["cy"]) for one in root.iter("{http://www.w3.org/2000/svg}circle") if one.attrib["cx"] != "86.0"
    ]
    assert marks[0] < marks[1]


def test_the_page_has_every_number_that_goes_in_with_its_source() -> None:
    assert inputs() in (DOCS / "simulation.md").read_text()


def test_a_hang_is_ended_after_two_looks_and_names_who_is_waited_for() -> None:
    ends_s, verdict = deciding.silence_of(700.0, "n3")
    assert (ends_s, verdict.cause, verdict.node) == (1400.0, Cause.HANG, "n3")
    assert deciding.silence_of(700.0, "")[1].node == ""


def test_a_probe_leaves_out_the_broken_and_the_slow_and_the_watch_finds_the_slow() -> None:
    names, slow = [f"n{number}" for number in range(200)], {"n7": 1.1, "n9": 1.3}
    reports = deciding.probed(names, {"n5", "n6", "n8"}, slow, random.Random(1))
    picked = chosen(names, 190, reports)
    standing = {one.node: one.standing for one in reports}
    assert standing["n7"] == "suspicious" and standing["n9"] == "slow"
    assert len(picked) == 190 and not {"n7", "n9"} & set(picked)
    found = deciding.found_slow(names, slow, slow, 10.0, random.Random(1), 5.0)
    assert [one.node for one in found] == ["n9", "n7"]


def test_todays_plain_chains_save_by_youngs_formula_and_are_ended_by_the_watchdog_ten_minutes_into_a_hang() -> None:
    rates = replace(CALM, failures=0.05, stuck_share=1.0)  # 48 nodes: one failure in ten hours
    setting = unhindered(rates, 20.0, 10_500.0)
    assert setting.youngs_interval == round(math.sqrt(2 * 40 * 36_000) / 10) == 170
    assert unhindered(CALM, 20.0, 10_500.0).youngs_interval == 1050
    run = months(setting, PLAIN_TODAY, 0)
    ended = [one for one in run.attempts if one.reason == Ending.FAILED]
    assert len(ended) > 10 and all(one.verdict is None for one in ended)
    lost = simulate(setting, PLAIN_TODAY, 0).shares["lost"]
    # A failure undoes half an interval, and the ten minutes until it is ended.
    assert lost * 20 * DAY_S / len(ended) == pytest.approx(850 + 600, rel=0.35)
    assert simulate(setting, PLAIN, 0).shares["lost"] > 0.3


def test_shared_and_bloom_differ_from_nodes_set_aside_by_what_is_said_of_them() -> None:
    whole = set_aside(48)
    other = replace(whole, name="shared", partition=144, is_exclusive=False, time_limit_s=20 * HOUR_S)
    assert shared(48) == other
    assert bloom(days=91.0) == replace(whole, name="BLOOM", seconds_per_iteration=105.0, eval_s=720.0)


def test_every_way_is_in_the_tables_and_the_picture_and_the_row_by_share_of_hangs() -> None:
    found = {
        (setting, nodes, way.name): Summary({0: an_outcome(number / 100), 1: an_outcome(number / 100)})
        for setting in ("set aside", "shared")
        for nodes in (50, 200, 1000, 3000, 10_000)
        for number, way in enumerate((*WAYS, *WITHOUT), 30)
    }
    of_size = {way.name: found["set aside", 1000, way.name] for way in WAYS}
    calibrated = {share: Between(0.932, 0.01) for share in calibration.SHARES}
    whole = Study(91.0, found, calibrated, dict.fromkeys(calibration.FIT, of_size))
    words = page(whole)
    for number, way in enumerate(WAYS, 30):
        assert words.count(f"\n| {way.name} | {number}.0 ± 0.0 |") == 2, way.name
        assert f"{way.name}</text>" in picture(whole)
    row = " | ".join(f"{number}.0 ± 0.0" for number in range(30, 30 + len(WAYS)))
    for share in ("15 %", "30 %", "45 %"):
        assert f"\n| {share} | {row} |\n" in words
    assert "91.9 %, 91.9 %, 91.9 %" in words and "91.8 %" in words


def an_outcome(goodput: float) -> Outcome:
    """Return an outcome of which only the goodput matters."""
    return Outcome(goodput, goodput, {str(part): 0.0 for part in PARTS}, 1, 1, 1, 1.0)
