"""Evaluate one checkpoint: export its weights, run lm-eval on them in a separate Python, and record the result.

The process holds the checkpoint's lock, so no other one evaluates it meanwhile. Finished tasks stay finished: after a
kill the next process continues with the rest. The exported weights are removed in every case, or at the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked, make_folder, remove, write_atomically, write_state
from opsctl.core.files.trusted import open_file
from opsctl.core.timestamps import now
from opsctl.jobs.evaluation.harness import Harness
from opsctl.jobs.evaluation.records import Chosen, Due, Evaluated, What, append, choose, lines_of, standing
from opsctl.jobs.evaluation.results import RESULTS, EvaluatedCheckpoint, Mark, answered, collected, task_file, words_of
from opsctl.jobs.evaluation.settings import Settings, refuse_strangers_program, settings_of
from opsctl.jobs.tracked_job import own_job_id
from opsctl.run.checkpoints.backups import digest_here, manifest_or_fault
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.background_progress import command_at_work, tell_progress
from opsctl.run.state.checkpoint_readers import reading
from opsctl.run.state.run_view import RunView
from trainer.formats.checkpoint.manifest import Manifest, tag_of
from trainer.formats.file_lock import is_locked

_LOCK_WAIT_S = 1.0
#: Exit codes of what was interrupted, as by the end of a job's time.
_INTERRUPTED = (130, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)


class Busy(OpsctlError):
    """Another process evaluates this checkpoint now."""


@dataclass(frozen=True)
class EvaluatedRun:
    """The results of one run; `is_well`: no task failed or is missing."""

    results: list[EvaluatedCheckpoint]
    is_well: bool


def choose_of_run(run: RunView, step: int | None, again: bool, say: Callable[[str], None]) -> tuple[Settings, Chosen]:
    """Return the settings of a run and its chosen checkpoints. Raises OpsctlError if [evaluation] names no tasks.

    say: prints a line about each warning and each checkpoint that is left out.
    """
    settings = settings_of(run)
    if settings is None or not settings.tasks:
        raise OpsctlError(f"{run.table.name} has no [evaluation] tasks: write them (docs/evaluation.md)")
    chosen = choose(run.paths, settings.table, step, again)
    for warning in settings.warnings:
        say(f"warning: {warning}")
    for iteration, why in chosen.left:
        say(f"{tag_of(iteration)} is left: {why}")
    return settings, chosen


def evaluate_run(
    run: RunView,
    step: int | None,
    again: bool,
    dry_run: bool,
    trainer: Callable[[str, Sequence[str]], int],
    say: Callable[[str], None],
) -> EvaluatedRun:
    """Evaluate the chosen checkpoints of a run, the oldest first; with `dry_run` only list them.

    A checkpoint that fails stops no other, unless `step` names it. Raises OpsctlError.
    """
    (settings, chosen), name = choose_of_run(run, step, again, say), run.table.name
    result = partial(EvaluatedCheckpoint, run=name)
    done, has_failed = [result(iteration=one, state="there", detail=why) for one, why in chosen.done], False
    if chosen.due and not dry_run:
        refuse_strangers_program(run, settings)
    evaluation = Evaluation(name, run.paths, settings, Harness(settings), trainer, say, own_job_id())
    for due in chosen.due:
        try:
            found = result(iteration=due.iteration, state="would evaluate") if dry_run else evaluation.run(due, again)
        except Busy as busy:
            found = result(iteration=due.iteration, state="busy", detail=str(busy))
        except OpsctlError as error:
            if step is not None:
                raise
            has_failed = True
            say(f"{tag_of(due.iteration)}: {error}")
            continue
        done.append(found)
    for one in done:
        say(f"{tag_of(one.iteration)}: {one.state}{f': {one.detail}' if one.detail else ''}")
    has_failed |= not dry_run and any(one.detail and one.state != "busy" for one in done)
    return EvaluatedRun(done, not has_failed)


@dataclass(frozen=True)
class Evaluation:
    """One run's checkpoints, and what evaluates them."""

    name: str  # the run's
    paths: RunPaths
    settings: Settings
    harness: Harness
    trainer: Callable[[str, Sequence[str]], int]  # runs a module of the trainer with arguments; its exit code
    say: Callable[[str], None]
    job_id: int = 0

    def run(self, due: Due, again: bool = False) -> EvaluatedCheckpoint:
        """Evaluate the checkpoint and return the result, also if another process has done it meanwhile.

        Raises Busy, OpsctlError without an lm-eval, KeyboardInterrupt.
        """
        with _turn(self.paths, due.iteration):
            stands = standing(lines_of(self.paths), due.iteration, due.of)
            begins_anew = again and not self._has_begun(due)
            if stands.is_done and not begins_anew:
                return self._result(due, "there", detail=stands.detail)
            if begins_anew:
                self._forget_answers(due)
            self._write(due, "begun")
            began_at = now()
            try:
                answer = self.harness.ask(self.settings.tasks)
            except OpsctlError as error:
                self._write(due, "failed", self._result(due, "failed", str(error)))
                raise
            under = self.settings.digest(answer.version)
            absent = [task for task in self.settings.tasks if task not in answer.known]
            for task in absent:
                self.say(f"{task} is not in lm-eval {answer.version}: it is left out, and on record as missing")
            try:
                manifest, problem = self._evaluated(
                    due, [one for one in self.settings.tasks if one not in absent], Mark(due.of, under)
                )
            except OSError as error:
                manifest, problem = None, file_problem(error, self.paths.evaluation(due.iteration))
            folder = self.paths.evaluation(due.iteration)
            tasks = collected(self.paths.output, folder, self.settings.tasks, Mark(due.of, under), absent)
            is_done = not problem and all(one.state in ("done", "missing") for one in tasks)
            detail = "; ".join(filter(None, (problem, words_of(tasks))))
            found = msgspec.structs.replace(
                self._result(due, "done" if is_done else "failed", detail),
                consumed_train_samples=manifest.consumed_train_samples if manifest else 0,
                began_at=began_at,
                ended_at=now(),
                lm_eval=answer.version,
                tasks=tasks,
            )
            if manifest is not None:
                self._keep(found)
            self._write(due, "done" if is_done else "failed", found)
        return found

    def _has_begun(self, due: Due) -> bool:
        """Return whether an earlier start of this command began: with --again only the first start deletes answers."""
        own = command_at_work()
        lines = lines_of(self.paths) if own else []
        return any(
            (line.errand, line.what, line.iteration, line.of) == (own, "begun", due.iteration, due.of) for line in lines
        )

    def _forget_answers(self, due: Due) -> None:
        """Delete old answers, so that a later start does not take them for new ones. Raises OpsctlError."""
        folder = self.paths.evaluation(due.iteration)
        try:
            for task in self.settings.tasks:
                remove(self.paths.output, task_file(folder, task))
        except OSError as error:
            raise OpsctlError(f"nothing is evaluated again: {file_problem(error, folder)}") from None

    def _evaluated(self, due: Due, tasks: Sequence[str], mark: Mark) -> tuple[Manifest | None, str]:
        """Run the missing tasks; return the checkpoint's manifest, and why not all are answered. Raises OSError."""
        folder, root = self.paths.evaluation(due.iteration), self.paths.output
        make_folder(root, folder)
        done = answered(root, folder, tasks, mark)
        left = [task for task in tasks if task not in done]
        for task in done:
            self.say(f"{task}: answered before")
        if not left:  # the process of the last task was killed before it recorded the end
            found = manifest_or_fault(self.paths.checkpoints / tag_of(due.iteration))
            return (None, found) if isinstance(found, str) else (found, "")
        with self._exported(due) as (model, manifest, problem):
            if problem:
                return manifest, problem
            request = self.paths.exported / f"{tag_of(due.iteration)}.json"
            write_atomically(root, request, json.dumps(self.harness.request(model, folder, left, mark)))
            try:
                code = self.harness.run(request, lambda: tell_progress(len(answered(root, folder, left, mark))))
            finally:
                with contextlib.suppress(OSError):
                    request.unlink()
            _raise_if_interrupted(code)
        return manifest, f"lm-eval failed with exit code {code}: see its output" if code else ""

    @contextlib.contextmanager
    def _exported(self, due: Due) -> Iterator[tuple[Path, Manifest | None, str]]:
        """Yield the weights in the format of transformers, or why there are none."""
        scratch = self.settings.table.scratch
        parent = Path(scratch) if scratch else self.paths.exported
        make_folder(self.paths.output, self.paths.exported)
        # Runs that share a scratch may have one name; never one output folder.
        which = hashlib.sha256(os.fsencode(self.paths.output.resolve())).hexdigest()[:12]
        model = parent / (tag_of(due.iteration) if not scratch else f"{tag_of(due.iteration)}-{which}")
        checkpoint = self.paths.checkpoints / tag_of(due.iteration)
        shutil.rmtree(model, ignore_errors=True)  # left by a killed start; the lock's holder is alone here
        try:
            with reading(self.paths, due.iteration, "evaluation"):
                found = manifest_or_fault(checkpoint)
                if isinstance(found, str) or digest_here(checkpoint) != due.of:
                    why = found if isinstance(found, str) else "it was saved again: the next evaluation takes that"
                    yield model, None, f"{checkpoint.name} has changed since its evaluation was planned: {why}"
                    return
                words = [f"--output={model}", f"--step={due.iteration}", f"--name={self.name}"]
                words += [f"--dtype={self.settings.table.dtype}"] if self.settings.table.dtype else []
                code = self.trainer("trainer.convert.hf.export_program", [*words, "--", str(self.paths.checkpoints)])
            _raise_if_interrupted(code)
            yield model, found, f"the export failed with exit code {code}: see its output" if code else ""
        finally:
            shutil.rmtree(model, ignore_errors=True)

    def _keep(self, found: EvaluatedCheckpoint) -> None:
        """Write results and curves. A failure is reported, and does not fail the evaluation."""
        results = self.paths.evaluation(found.iteration) / RESULTS
        try:
            write_state(self.paths.output, results, found)
        except OSError as error:
            self.say(f"{results} cannot be written: {file_problem(error)}")
            return
        if any(one.metrics for one in found.tasks):
            code = self.trainer("trainer.tasks.curves", [str(results), str(self.paths.tensorboard / "lm-eval")])
            if code:
                self.say(f"TensorBoard has no curves of {tag_of(found.iteration)}: opsctl evaluate --again draws them")

    def _result(self, due: Due, state: str, detail: str = "") -> EvaluatedCheckpoint:
        return EvaluatedCheckpoint(
            run=self.name,
            iteration=due.iteration,
            state=state,
            of=due.of,
            folder=str(self.paths.evaluation(due.iteration)),
            by=account_and_host(),
            job_id=self.job_id,
            python=self.settings.python,
            settings=msgspec.to_builtins(self.settings.table),
            detail=detail,
        )

    def _write(self, due: Due, what: What, found: EvaluatedCheckpoint | None = None) -> None:
        line = Evaluated(
            iteration=due.iteration,
            what=what,
            of=due.of,
            at=now(),
            by=account_and_host(),
            errand=command_at_work(),
            job_id=self.job_id,
            tasks=len(self.settings.tasks),
            answered=sum(one.state == "done" for one in found.tasks) if found else 0,
            detail=found.detail if found else "",
        )
        try:
            append(self.paths, line)
        except OSError as error:
            self.say(f"{self.paths.evaluations} cannot be written: {file_problem(error)}")


@contextlib.contextmanager
def _turn(paths: RunPaths, iteration: int) -> Iterator[None]:
    """Hold the lock of one checkpoint, across hosts and users. Raises Busy."""
    make_folder(paths.output, paths.evaluating)
    with contextlib.ExitStack() as stack:
        try:
            lock = locked(paths.output, lock_of(paths, iteration), _LOCK_WAIT_S, f"evaluate {tag_of(iteration)}")
            stack.enter_context(lock)
        except OpsctlError as error:
            raise Busy(str(error)) from None
        yield


def is_at_work(paths: RunPaths, iteration: int) -> bool:
    """Return whether another process evaluates that checkpoint now."""
    try:
        fd = open_file(paths.output, lock_of(paths, iteration))
    except OSError:
        return False
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


def lock_of(paths: RunPaths, iteration: int) -> Path:
    """Return the lock that the process evaluating this checkpoint holds."""
    return paths.evaluating / f"{tag_of(iteration)}.lock"


def _raise_if_interrupted(code: int) -> None:
    if code in _INTERRUPTED:
        raise KeyboardInterrupt
