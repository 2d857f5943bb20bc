"""GPUs that give less than the run was planned with."""

from __future__ import annotations

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.speed import throughput
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.config.schema import ExpectTable, WatchTable
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from tests.unit.monitoring.lines import lines, scaled
from trainer.formats.logs.training_line import TrainingLine


def found(series: tuple[TrainingLine, ...], **known: object) -> list[str]:
    settings = Settings("demo", "us", global_batch_size=2048, **known)  # type: ignore[arg-type]
    return [one.text for one in throughput.find(Snapshot(NOW, (RUNNING,), series=series), settings)]


def test_less_than_tflops_least_is_found() -> None:
    slow = scaled(lines(300), -60, tflops=140 / 149)
    (text,) = found(slow, watch=WatchTable(tflops_least=145.0))
    assert missing(text, "TFLOPs", "145", "[watch] tflops_least") == []
    assert found(slow, watch=WatchTable(tflops_least=130.0)) == []


def test_expected_tflops_count_without_a_limit_of_the_user() -> None:
    slow, expect = scaled(lines(300), -60, tflops=0.8), ExpectTable(tflops=150.0)
    (text,) = found(slow, expect=expect)
    assert missing(text, "127.5", "85 %", "[expect] tflops") == []
    assert found(lines(300), expect=expect) == []


def test_without_a_plan_nothing_is_said() -> None:
    assert found(scaled(lines(300), -60, tflops=0.2)) == []


def test_a_ramp_an_evaluation_and_the_first_iterations_are_no_finding() -> None:
    expect = ExpectTable(tflops=150.0)
    ramp = lines(300, lambda n: {"global_batch_size": 192 + 16 * (n // 40), "tflops": 73.0})
    assert found(ramp, expect=expect) == []
    assert found(lines(300, lambda n: {"tflops": 12.0} if n == 290 else {}), expect=expect) == []
    assert found(scaled(lines(300), -10, tflops=0.5), expect=expect) == []
    assert found(lines(20, lambda _: {"tflops": 50.0}), expect=expect) == []


def test_at_the_limit_it_does_not_come_and_go_with_every_look() -> None:
    watch = WatchTable(tflops_least=149.0)
    series = scaled(lines(400), -200, tflops=0.985)
    near = scaled(series, -30, tflops=1.012 / 0.985)
    assert found(series, watch=watch)
    # Half of what is looked at is from before.
    assert [bool(found(near[: 400 - n], watch=watch)) for n in range(28, -1, -4)].count(True) in range(8)
