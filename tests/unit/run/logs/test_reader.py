"""A whole log of any program, also read in parts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import pytest

from opsctl.run.logs.lines import AttemptStart, parse_line
from opsctl.run.logs.reader import Found, LogReader
from opsctl.run.logs.records import Setting, SkippedRange
from tests.unit.run.logs.test_lines import TR1, TR11_EARLY
from trainer.formats.logs.guard_lines import Left, Reason
from trainer.formats.logs.log_lines import (
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaving,
    Evaluation,
    Stamp,
    Timers,
)
from trainer.formats.logs.training_line import AlikeLines, TrainingLine

ARGONNE = (
    "[2024-09-16 22:59:27.744603][INFO][training_log:661] -  iteration=       2/  635782 | consumed_samples=    1536"
    " | consumed_tokens=     6291456 | elapsed_time_per_iteration_ms=8457.2 | learning_rate=1.88744e-08 |"
    " global_batch_size=768 | lm loss=11.164009 | loss_scale=1.0 | grad_norm=6.271 | actual_seqlen= 4096 |"
    " number_of_skipped_iterations=  0 | number_of_nan_iterations=  0 | samples_per_second=90.810 |"
    " tokens_per_gpu_per_second_tgs=15498.234 | [LM]TFLOPs=70.98| [DS]TFLOPs=91.53 |"
)
MEGATRON_CORE = (
    " [2026-04-27 00:00:03] iteration       50/    5000 | consumed samples:        51200 |"
    " elapsed time per iteration (ms): 61674.3 | throughput per GPU (TFLOP/s/GPU): 68.2 |"
    " learning rate: 1.000000E-04 | global batch size:  1024 | lm loss: 1.500000E+00 | loss scale: 1.0 |"
    " grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
TITAN = """\
[rank0]:[titan] 2025-10-30 14:32:50,000 - root - INFO - Trainer is initialized with local batch size 8, \
global batch size 64, gradient accumulation steps 1, sequence length 2048, total steps 1000 (warmup 2)
[rank0]:[titan] 2025-10-30 14:32:50,500 - root - INFO - Training starts at step 1
[rank0]:[titan] 2025-10-30 14:32:58,897 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1661  \
\x1b[38;2;180;60;0mgrad_norm:  3.6855  memory:  2.47GiB(3.12%)  tps: 3,502  tflops: 1.90  mfu: 0.19%\x1b[39m
[rank1]:[titan] 2025-10-30 14:32:58,897 - root - INFO - step:  1  loss:  8.1661  grad_norm:  3.6855  \
memory:  2.47GiB(3.12%)  tps: 3,502  tflops: 1.90  mfu: 0.19%
[rank0]:[titan] 2025-10-30 14:33:18,897 - root - INFO - step: 11  loss:  4.7947  grad_norm:  2.4418  \
memory:  2.49GiB(3.14%)  tps: 189,694  tflops: 1,402.99  mfu: 10.4%
[rank0]:[titan] 2025-10-30 14:33:18,897 - root - INFO - validate step: 11  loss:  4.9000  memory: 2.49GiB(3.14%)  tps: 9
[rank0]:[titan] 2025-10-30 14:33:20,897 - root - INFO - Finished saving the checkpoint in 1.20 seconds.
[rank0]:[titan] 2025-10-30 14:33:21,897 - root - INFO - Training completed
"""


def records(found: Iterable[Found]) -> list[object]:
    """Return the records, each of those that were read together by itself."""
    return [line for one in found for line in (one.lines() if isinstance(one, AlikeLines) else (one,))]


def read(text: str) -> list[object]:
    return records(LogReader().feed(text.encode()))


def iterations(text: str) -> list[TrainingLine]:
    return [one for one in read(text) if isinstance(one, TrainingLine)]


def test_argonnes_line_of_keys_and_values_says_what_megatrons_does() -> None:
    (found,) = iterations(ARGONNE)
    assert found == TrainingLine(
        iteration=2,
        total_iterations=635782,
        consumed_samples=1536,
        consumed_tokens=6291456,
        seconds_per_iteration=8.4572,
        learning_rate=1.88744e-08,
        global_batch_size=768,
        loss=11.164009,
        loss_scale=1.0,
        grad_norm=6.271,
        skipped_iterations=0,
        nan_iterations=0,
        samples_per_second=90.81,
        tflops=70.98,
        tokens_per_second_per_gpu=15498.234,
        logged_at=datetime(2024, 9, 16, 22, 59, 27),  # noqa: DTZ001
        others={"actual_seqlen": 4096.0, "[DS]TFLOPs": 91.53},
    )


def test_megatron_cores_line_has_its_moment_and_its_throughput() -> None:
    (found,) = iterations(f"  seq_length ...................................... 4096\n{MEGATRON_CORE}\n")
    assert found.logged_at == datetime(2026, 4, 27, 0, 0, 3)  # noqa: DTZ001
    assert (found.tflops, found.seconds_per_iteration, found.consumed_tokens) == (68.2, 61.6743, 51200 * 4096)


def test_torchtitans_steps_get_what_its_other_lines_say() -> None:
    first, second = iterations(TITAN)
    assert (first.iteration, first.loss, first.grad_norm, first.mfu_percent) == (1, 8.1661, 3.6855, 0.19)
    assert (first.seconds_per_iteration, first.total_iterations, first.global_batch_size) == (None, 1000, 64)
    assert (second.seconds_per_iteration, second.samples_per_second, second.tflops) == (2.0, 32.0, 1402.99)
    assert (second.consumed_samples, second.consumed_tokens) == (704, 704 * 2048)
    assert second.tokens_per_second_per_gpu == 189694.0


def test_torchtitans_learning_rate_is_read_where_it_is_printed() -> None:
    (found,) = iterations("[titan] 2025-10-30 14:33:18,897 - root - INFO - step: 10  loss: 4.5  lr: 8.0e-04  tps: 9\n")
    assert (found.learning_rate, found.loss) == (8e-4, 4.5)


def test_a_line_without_a_total_keeps_its_own_values() -> None:
    own = " iteration       10/       0 | elapsed time per iteration (s): 0.25 | lm loss: 4.307000E+00 |"
    (found,) = iterations(own)
    assert (found.iteration, found.seconds_per_iteration, found.loss) == (10, 0.25, 4.307)


def test_torchtitans_milestones_are_those_of_any_training() -> None:
    found = read(TITAN)
    at = datetime(2025, 10, 30, 14, 33, 21, 897_000)  # noqa: DTZ001
    assert found[-3:] == [
        Evaluation("validation", 11, 4.9, None),
        CheckpointSaved(11, ""),
        Left(Reason.FINISHED, "", at),
    ]
    assert Setting(starts_at=1) in found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            " validation loss at iteration 3 on test set | lm loss value: 1.75E+00 | lm loss PPL: 5.75E+00 | ",
            Evaluation("validation", 3, 1.75, 5.75, "test"),
        ),
        (
            " validation loss at iteration 3 on validation set | lm loss value: 1.25E+00 |",
            Evaluation("validation", 3, 1.25, None, "val"),
        ),
        (" validation loss at iteration 7 | LM loss: 6.5 | LM PPL: 665.1 |", Evaluation("validation", 7, 6.5, 665.1)),
        ("saving checkpoint at iteration      60 to /a in torch_dist format", CheckpointSaving(60, "/a")),
        ("  successfully saved checkpoint from iteration     60 to /a [ t 1/2, p 1/1 ]", CheckpointSaved(60, "/a")),
        ("  successfully loaded checkpoint from /a [ t 1/2, p 1/4 ] at iteration 60", CheckpointLoaded(60, "/a")),
        ("[rank0]:2025-01-01 00:00:00,1 - root - INFO - Loading the checkpoint from /o/step-10.",
         CheckpointLoaded(10, "/o/step-10")),
        ("Skipped iterations 5 to 9 due to --skip-train-iteration-range flag.", SkippedRange(5, 9)),
        ("  world_size ...................................... 384", Setting(world_size=384)),
        ("[2022-03-11 19:46:08] [after dataloaders are built] datetime: 2022-03-11 19:46:08 ",
         Stamp("after dataloaders are built", datetime(2022, 3, 11, 19, 46, 8))),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_other_programs_lines_are_read(line: str, expected: object) -> None:
    assert parse_line(line) == expected


def test_a_torn_line_takes_nothing_of_what_follows_it() -> None:
    torn = TR11_EARLY[:150]
    begins = "START TIME: 2022-03-11T19:46:08+01:00 attempt 2, job 7_2 (8), revision 3-a, from iteration 5, nodes a b"
    first, start, second = read(f"{torn}\n{begins}\n{TR1}\n")
    assert isinstance(first, TrainingLine) and first.iteration == 3707 and first.loss is None
    assert isinstance(start, AttemptStart) and start.nodes == ("a", "b")
    assert isinstance(second, TrainingLine) and second.iteration == 168000
    assert [one.iteration for one in iterations(f"{torn}\n{TR1}\n")] == [3707, 168000]
    assert iterations(f"{torn}\nloss: 3 | foo: 7 |\n")[0].others == {}


def test_a_missing_loss_is_no_loss_and_the_next_line_has_its_own() -> None:
    diverged = TR11_EARLY.replace(" lm loss: 5.396257E+00 |", "").replace("3707/", "3708/")
    assert [one.loss for one in iterations(f"{TR11_EARLY}\n{diverged}\n{TR11_EARLY}\n")] == [5.396257, None, 5.396257]


def test_what_is_no_text_is_no_error() -> None:
    assert read("\0\0 iteration \xff\n") == []
    reader = LogReader()
    assert list(reader.feed(b"\xff\xfe iteration 1/ 2 | consumed samples: \xff |\n" * 2)) == []


def test_iterations_that_look_alike_wait_for_no_line_after_them() -> None:
    text = "".join(TR11_EARLY.replace("3707/", f"{iteration}/") + "\n" for iteration in (3707, 3708, 3709))
    assert [one.iteration for one in iterations(text)] == [3707, 3708, 3709]


def test_lines_of_several_layouts_are_read_alike() -> None:
    other = TR11_EARLY.replace(" lm loss: 5.396257E+00 |", "").replace("grad norm: 0.765", "grad norm: inf")
    lines = [f"[default7]: {TR11_EARLY}", f"[default7]: {other}"]
    assert read("".join(f"{one}\n" for one in lines * 3)) == [*map(parse_line, lines)] * 3


def test_torchtitans_clock_counts_to_its_last_digit() -> None:
    said = "[titan] 2025-10-30 14:33:{:06.3f} - root - INFO - step: {:2d}  loss:  4.7947  memory: 2GiB(3%)  tps: 9\n"
    text = "".join(said.format(0.3 * step, step).replace(".", ",", 1) for step in range(1, 8))
    assert [one.seconds_per_iteration for one in iterations(text)][1:] == pytest.approx([0.3] * 6)


TIMERS = "time (ms) | forward: 10.00 | backward: 20.00 |\n"


def test_lines_without_a_record_do_not_part_the_lines_around_them() -> None:
    texts = [TR11_EARLY.replace("3707/", f"{iteration}/") for iteration in range(3707, 3711)]
    saved = f"{TIMERS}time (ms) | save-checkpoint: 2.00 |\n"
    found = [*LogReader().feed("".join(f"{text}\n{TIMERS}" for text in texts).encode())]
    assert [type(one) for one in found] == [TrainingLine, AlikeLines]
    assert records(found) == [parse_line(text) for text in texts]
    with_saves = read("".join(f"{text}\n{saved}" for text in texts))
    assert [type(one) for one in with_saves] == [TrainingLine, Timers] * 4


@pytest.mark.parametrize("prefix", ["[rank0]:", "0: [rank0]:", ""])
@pytest.mark.parametrize("colour", ["", "\x1b[38;2;180;60;0m"])
def test_torchtitans_steps_are_the_same_together_as_each_alone(prefix: str, colour: str) -> None:
    head = "[titan] 2025-10-30 14:33:{0:02d},{0:03d} - root - INFO - "
    step = (
        f"{colour}step: {{0:2d}}  {colour}loss: {{1}}  memory: 2.{{0}}GiB(3.{{0}}%)  tps: 1{{0}},234  mfu: {{0}}.5%\n"
    )
    losses = ["4.5", "12.25", "3", "nan", "2.5"]
    lines = [prefix + (head + step).format(at, loss) for at, loss in enumerate(losses, 1)]
    alone, reader = [], LogReader()
    for line in lines:
        reader._layouts.clear()  # none is known
        alone += records(reader.feed(line.encode()))
    found = [*LogReader().feed("".join(lines).encode())]
    assert AlikeLines in map(type, found)
    assert str(records(found)) == str(alone)  # NaN is equal to nothing


def test_other_ranks_of_torchtitan_are_left_out_of_lines_that_look_alike() -> None:
    said = "[rank{1}]:[titan] 2025-10-30 14:33:{0:02d},000 - root - INFO - step: {0:2d}  loss:  4.7947  tps: 9\n"
    text = "".join(said.format(step, rank) for step in range(1, 6) for rank in (1, 0, 2))
    assert [one.iteration for one in iterations(text)] == [1, 2, 3, 4, 5]
