"""A long training's log: a ramp-up, restarts that do iterations again, spikes, evaluations, saves, a kill switch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from opsctl.diagnosis.nodes.node_evidence import NodeEvidence, append_node_evidence
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.lines import AttemptStart, write_attempt_start
from opsctl.run.logs.pulse import pulse_line
from opsctl.run.logs.reader import LogReader
from opsctl.run.state.chains import Chain, append_chain
from trainer.formats.logs.guard_lines import Reason, leave_line
from trainer.formats.logs.log_lines import (
    CheckpointSaved,
    Evaluation,
    perplexity,
    stamp,
    write_checkpoint_line,
    write_evaluation,
)
from trainer.formats.logs.training_line import TrainingLine, write_training_line

BEGAN = datetime(2022, 3, 11, 19, 42, tzinfo=UTC)
SPIKE_AT, EVERY_SAVE, EVERY_EVALUATION = 0.6, 1000, 2500


def loss_at(iteration: int, in_all: int, chance: random.Random) -> float:
    """As a curve falls: a power of the share done, a little noise, one spike."""
    share = iteration / in_all
    spike = 3.0 if 0 <= iteration - int(SPIKE_AT * in_all) < max(6, in_all // 4000) else 0.0
    fallen: float = 9.0 / (1 + 60 * share) ** 1.3
    return 1.9 + fallen + chance.gauss(0, 0.01) + spike


def log_lines(
    iterations: int, seconds: float = 105.0, restart_every: int = 12_000, name: str = "tr-test"
) -> Iterator[str]:
    """The lines; every restart goes back to the last checkpoint. `iterations` in all."""
    chance = random.Random(7)
    at, done, attempt, samples, saved_samples = BEGAN, 0, 0, 0, 0
    while done < iterations:
        attempt += 1
        nodes = tuple(f"node{number:02d}" for number in range(4))
        start = AttemptStart(
            at=at,
            attempt=attempt,
            job=f"12_{attempt}",
            job_id=100 + attempt,
            requeues=0,
            revision=f"{1 + attempt // 3:04d}-abcdef012345",
            iteration=done or None,
            nodes=nodes,
        )
        yield write_attempt_start(start)
        at += timedelta(minutes=4)
        yield stamp("before the start of training step", at)
        last = min(iterations, done + restart_every)
        for iteration in range(done + 1, last + 1):
            batch = min(2048, 16 * (1 + iteration * 256 // iterations))
            samples += batch
            took = seconds * batch / 2048 * chance.uniform(0.98, 1.03)
            at += timedelta(seconds=took)
            line = TrainingLine(
                iteration=iteration,
                total_iterations=iterations,
                consumed_samples=samples,
                consumed_tokens=samples * 2048,
                seconds_per_iteration=took,
                learning_rate=6e-5
                * min(1.0, 20 * iteration / iterations)
                * (0.55 + 0.45 * math.cos(3 * iteration / iterations)),
                global_batch_size=batch,
                loss=loss_at(iteration, iterations, chance),
                grad_norm=abs(chance.gauss(0.2, 0.05)),
                skipped_iterations=0,
                nan_iterations=0,
                samples_per_second=batch / took,
                tflops=150 * chance.uniform(0.97, 1.01),
                mfu_percent=48 * chance.uniform(0.97, 1.01),
            )
            yield f"[default7]:{write_training_line(line)}"
            if iteration % EVERY_SAVE == 0:
                saved_samples = samples
                yield write_checkpoint_line(CheckpointSaved(iteration, "/scratch/checkpoints"))
                yield "[default7]:time (ms) | save-checkpoint: 40123.45"
            if iteration % EVERY_EVALUATION == 0:
                for group, above in (("valid-en", 0.03), ("valid-fr", 0.12)):
                    loss = loss_at(iteration, iterations, chance) + above
                    yield write_evaluation(Evaluation(group, iteration, loss, perplexity(loss)))
        ended = last == iterations
        if attempt == 2:
            yield leave_line(Reason.KILL_SWITCH, "/scratch/kill-switch", at)
        elif not ended:
            yield "RuntimeError: NCCL communicator was aborted on rank 17. <script>alert(1)</script>"
            at += timedelta(hours=3)
            yield pulse_line(
                at, f"{name} is not RUNNING or SCHEDULED", "the </script><img src=x onerror=alert(1)> team"
            )
        back = (last // EVERY_SAVE) * EVERY_SAVE if not ended else last
        if back > done:
            samples = saved_samples if not ended else samples
        done = back if back > done else last
        at += timedelta(hours=chance.uniform(1, 20))


def log_text(iterations: int, **how: object) -> str:
    """The same as text."""
    return "\n".join(log_lines(iterations, **how)) + "\n"  # type: ignore[arg-type]


def made_run(folder: Path, iterations: int = 6000) -> RunPaths:
    """A run's folder with that log, the records of its attempts, what speaks against a node, revisions' marks aside."""
    (folder / "run.toml").write_text(RUN_FILE)
    paths = RunPaths(folder / "output")
    paths.logs.mkdir(parents=True)
    (paths.output / ".opsctl").mkdir()
    text = log_text(iterations, restart_every=iterations // 5 + 137)
    paths.main_log.write_text(text)
    starts = [one for one in LogReader().feed(text.encode()) if isinstance(one, AttemptStart)]
    append_chain(paths, Chain(chain=12, submitted_at=BEGAN - timedelta(hours=2), user="ann", array="1-9%1"))
    for number, start in enumerate(starts):
        opened = Attempt(
            number=start.attempt,
            id=f"{start.job_id}-x",
            job_id=start.job_id,
            array_job_id=12,
            array_task=str(start.attempt),
            chain_submitted_at=BEGAN - timedelta(hours=2),
            revision=start.revision,
            nodes=start.nodes,
            opened_at=start.at,
            iteration_at_start=start.iteration,
        )
        append_opened(paths, opened)
        following = starts[number + 1] if number + 1 < len(starts) else None
        ended = following.at - timedelta(hours=1) if following is not None else start.at + timedelta(days=2)
        why = Verdict(cause=Cause.NCCL, summary="NCCL lost a peer", node="node03", rank=17, confidence=0.9)
        closing = replace(
            opened,
            closed_at=ended,
            closed_by="job",
            reason="failed" if following is not None else "finished",
            exit_code=1 if following is not None else 0,
            checkpoint_at_end=following.iteration if following is not None else iterations,
            verdict=why if following is not None else None,
        )
        append_closed(paths, closing)
    seen = NodeEvidence(node="node03", kind="nccl", at=BEGAN, words="rank 17 lost </script><b>", confidence=0.9)
    append_node_evidence(paths, seen)
    return paths


RUN_FILE = """
[run]
name = "tr-test"
team = "the </script><img src=x onerror=alert(1)> team"
output = "output"

[slurm]
nodes = 4
gpus_per_node = 8
time = "20:00:00"
partition = "gpu"

[expect]
tflops = 160

[trainer]
tensor_model_parallel_size = 1
num_layers = 2
hidden_size = 64
num_attention_heads = 4
seq_length = 2048
micro_batch_size = 4
global_batch_size = 2048
train_samples = 12_288_000
lr = 6e-5
lr_decay_samples = 12_288_000
"""
