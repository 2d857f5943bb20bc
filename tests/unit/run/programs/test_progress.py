"""A program's output becomes lines that the training log's reader understands."""

from __future__ import annotations

import pytest

from opsctl.run.programs import command, lightning, litgpt, transformers
from opsctl.run.programs.progress import Translator
from trainer.formats.logs.training_line import TrainingLine, parse_training_line


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def parsed(lines: list[str]) -> list[TrainingLine]:
    found = [parse_training_line(line) for line in lines]
    assert all(found)
    return [one for one in found if one is not None]


def bar(done: int) -> bytes:
    return f"\r {done * 100 // 40}%|████ | {done}/40 [00:01<00:01, 2.00it/s]".encode()


def test_a_dictionary_belongs_to_the_step_of_the_bar_after_it() -> None:
    """The Trainer does not draw every step, but always draws the bar again below its dictionary."""
    translator = Translator(transformers.KIND.progress, None, 16, Clock())
    logged = b"\r                  \r{'loss': '4.178', 'grad_norm': '0.5', 'learning_rate': '2.5e-05'}\n"
    (line,) = [one for one in parsed(translator.lines(bar(9) + logged + bar(10))) if one.loss is not None]
    assert (line.iteration, line.total_iterations, line.consumed_samples) == (10, 40, 160)
    assert (line.loss, line.grad_norm, line.learning_rate) == (4.178, 0.5, 2.5e-05)


def test_the_rate_of_a_bar_which_counts_the_steps_before_a_resume_is_not_believed() -> None:
    clock = Clock()
    translator = Translator(transformers.KIND.progress, clock=clock)
    lines = translator.lines(b"\r 50%|##  | 20/40 [00:00<00:00, 131.56it/s]")
    clock.now += 3
    lines += translator.lines(b"\r 51%|##  | 21/40 [00:03<00:00, 131.56it/s]")
    assert [(one.iteration, one.seconds_per_iteration) for one in parsed(lines)] == [(20, None), (21, 3.0)]


def test_a_loss_that_is_not_a_number_is_counted_and_a_step_without_a_loss_is_not() -> None:
    translator = Translator(transformers.KIND.progress, clock=Clock())
    found = parsed(translator.lines(bar(1) + b"\r{'loss': 'nan'}\n" + bar(2)))
    assert [(one.iteration, one.nan_iterations) for one in found] == [(1, None), (2, 1)]


def test_a_fast_bar_adds_a_line_a_second_and_its_last_step_is_not_lost() -> None:
    clock = Clock()
    translator = Translator(transformers.KIND.progress, None, None, clock)
    lines: list[str] = []
    for done in range(1, 31):
        clock.now += 0.1
        lines += translator.lines(bar(done) + b"\r")
    assert 2 <= len(lines) <= 4
    assert [one.iteration for one in parsed(translator.last())] == [30]
    assert translator.last() == []


@pytest.mark.parametrize("cut", [1, 7, 64])
def test_lines_are_found_wherever_a_chunk_ends(cut: int) -> None:
    line = "Epoch 1 | iter {} step {} | loss train: 4.307, val: n/a | iter time: 2.50 ms (step)\n"
    output = "".join(line.format(step * 2, step) for step in (1, 2, 3)).encode()
    translator = Translator(litgpt.KIND.progress, 40)
    lines = [one for at in range(0, len(output), cut) for one in translator.lines(output[at : at + cut])]
    assert [(one.iteration, one.total_iterations) for one in parsed(lines)] == [(1, 40), (2, 40), (3, 40)]


def test_a_resumed_program_that_counts_again_from_its_checkpoint_adds_no_older_lines() -> None:
    translator = Translator(litgpt.KIND.progress, 40)
    line = "Epoch 1 | iter {} step {} | loss train: 4.307, val: n/a | iter time: 2.50 ms (step)\n"
    steps = [5, 5, 4, 6]
    lines = translator.lines("".join(line.format(step, step) for step in steps).encode())
    assert [one.iteration for one in parsed(lines)] == [5, 5, 6]


def test_seconds_per_step_are_measured_where_the_program_does_not_print_them() -> None:
    clock = Clock()
    kind = command.kind_of(None, [], r"step (?P<iteration>\d+) loss (?P<loss>\S+)", [])
    translator = Translator(kind.progress, 40, None, clock)
    lines = translator.lines(b"step 2 loss 1.0\n")
    clock.now += 6
    lines += translator.lines(b"step 4 loss 0.9\n")
    assert [one.seconds_per_iteration for one in parsed(lines)] == [None, 3.0]


def test_endless_output_without_a_line_end_takes_no_memory() -> None:
    translator = Translator(litgpt.KIND.progress)
    for _ in range(100):
        assert translator.lines(b"x" * 100_000) == []
    assert len(translator._rest) <= 64 * 1024


def draws(name: str, done: int, total: str, before: float, loss: float) -> bytes:
    """Two bars of a step, as Lightning draws them: the first with the loss of the step before."""
    text = "\r{}:  5%|#    | {}/{} [00:00<00:05,  4.00it/s, v_num=0, loss={}]"
    return "".join(text.format(name, done, total, value) for value in (before, loss)).encode()


def test_lightnings_bars_give_each_step_its_own_loss_also_in_a_shorter_last_epoch() -> None:
    assert lightning.KIND.follow is not None
    translator = Translator(lightning.KIND.follow(0, 1), 50)
    output, step = b"\rTraining: |     | 0/? [00:00<?, ?it/s]", 0
    for epoch, length in enumerate((20, 20, 10)):
        output += f"\rEpoch {epoch}:   0%|     | 0/{length} [00:00<?, ?it/s, v_num=0, loss={step}.5]".encode()
        for done in range(1, length + 1):
            output += draws(f"Epoch {epoch}", done, str(length), step + 0.5, step + 1.5)
            step += 1
        output += draws(f"Epoch {epoch}", length, str(length), step + 0.5, step + 0.5)
        output += f"\rEpoch {epoch}:   0%|     | 0/{length} [00:00<?, ?it/s, v_num=0, loss={step}.5]".encode()
    lines = parsed(translator.lines(output + b"\n"))
    assert [(one.iteration, one.loss) for one in lines] == [(n, n + 0.5) for n in range(1, 51)]
    assert {one.seconds_per_iteration for one in lines} == {0.25}


def test_lightnings_bars_after_a_resume_within_an_epoch_continue_at_the_checkpoints_step() -> None:
    assert lightning.KIND.follow is not None
    translator = Translator(lightning.KIND.follow(30, 1), 50)
    output = b"\rTraining: |     | 0/? [00:00<?, ?it/s]"
    output += b"".join(draws("Training", done, "?", 9.0, 1.0) for done in range(11, 21))
    output += b"\rEpoch 2:   0%|     | 0/10 [00:00<?, ?it/s, v_num=1, loss=1.0]"
    output += b"".join(draws("Epoch 2", done, "10", 9.0, 1.0) for done in range(1, 11))
    lines = parsed(translator.lines(output + b"\n"))
    assert [(one.iteration, one.loss) for one in lines] == [(n, 1.0) for n in range(31, 51)]


def test_lightnings_bars_count_steps_where_a_step_has_several_batches() -> None:
    """Epochs of five batches, two in a step: Lightning makes a step at the end of an epoch too."""
    assert lightning.KIND.follow is not None
    whole, resumed = Translator(lightning.KIND.follow(0, 2), 8), Translator(lightning.KIND.follow(4, 2), 8)
    first = b"".join(draws(f"Epoch {epoch}", done, "5", 9.0, 1.0) for epoch in (0, 1) for done in range(1, 6))
    assert [one.iteration for one in parsed(whole.lines(first + b"\n"))] == [1, 2, 3, 4, 5, 6]
    rest = b"".join(draws("Training", done, "?", 9.0, 1.0) for done in range(3, 6))
    rest += b"\rEpoch 2:   0%|     | 0/5 [00:00<?, ?it/s, v_num=1, loss=1.0]"
    rest += b"".join(draws("Epoch 2", done, "5", 9.0, 1.0) for done in range(1, 5))
    lines = parsed(resumed.lines(rest + b"\n"))
    assert [one.iteration for one in lines] == [5, 7, 8]  # the bar of an epoch's rest does not show its end
    assert lines[-1].seconds_per_iteration == 0.5
