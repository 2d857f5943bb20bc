"""Find from which checkpoint a training resumes, given its options."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.into_engine import random_states, restore_random_states
from trainer.checkpoint.load import find_at_step, find_instead_of_a_damaged_one, find_latest, load_checkpoint
from trainer.core.files import HeldFolder, read_plain, write_atomically
from trainer.data.build import DataError, Dataset
from trainer.data.gpt_dataset import BlendedDataset, GPTDataset
from trainer.data.sample_order import sample_order
from trainer.formats.checkpoint.changes import (
    ALLOW,
    Identity,
    change_text,
    changes,
    refuse_other_training,
    training_changes,
)
from trainer.formats.checkpoint.history import Progress, Start, saved_now, started_now
from trainer.formats.checkpoint.manifest import Found, Manifest, latest_folder, read_manifest
from trainer.formats.checkpoint.partitions import INFO, saved_parameters, universal_checkpoint_info
from trainer.formats.checkpoint.starting import (
    NO_OPTIMIZER,
    FellBack,
    found_at_step,
    refuse_other_model,
    schedule_to_resume_with,
    step_change,
    uses_weights_only,
)
from trainer.formats.data.data_identity import data_facts
from trainer.formats.errors import CheckpointError
from trainer.loop.observer import Observer, Step
from trainer.parallel.agreement import Refusal, from_first_rank
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.save_schedule import SaveSchedule
from trainer.recipe.spike_guard import GuardState


@dataclass(frozen=True)
class Resumption:
    """The start of a training: from a checkpoint, or, with none, from the beginning."""

    found: Found | None
    progress: Progress
    schedule: LearningRateSchedule
    start: Start  # this one, with all that changed
    fell_back: FellBack | None = None  # from a damaged one

    @property
    def history(self) -> tuple[Start, ...]:
        """Every start of the training, this one's last."""
        return (*(self.found.manifest.history if self.found else ()), self.start)

    def changed(self) -> list[str]:
        """Return a line for each difference to the checkpoint, and for what cannot be compared."""
        if self.found is None:
            return []
        name = self.found.folder.name
        lines = [self.fell_back.message()] if self.fell_back else []
        lines += [f"changed since {name} was saved: {change_text(change)}" for change in self.start.changes]
        if not self.found.manifest.training:
            lines.append(
                f"{name} does not record its seed, data and settings: they are not compared with the present ones"
            )
        return lines

    @property
    def saved_iteration(self) -> int | None:
        """The iteration of the checkpoint, also when finetuning counts from 0; None at the very beginning."""
        return self.found.manifest.iteration if self.found else None


def data_facts_everywhere(options: Options) -> dict[str, Any]:
    """`data_facts`, looked at on the first rank. Collective. Raises DataError on every rank alike."""

    def look() -> dict[str, Any] | str:
        try:
            return data_facts(options)
        except DataError as error:
            return str(error)

    found: dict[str, Any] | str = from_first_rank(look, ())
    if isinstance(found, str):
        raise DataError(found)
    return found


def find_resumption(options: Options, identity: Identity, schedule: LearningRateSchedule) -> Resumption:
    """Look at --load, collectively. Raises Refusal when its checkpoint is damaged or another training's."""
    found, fell_back = _find(options)
    if found is None:
        return Resumption(None, Progress.none(), schedule, _start("began", Progress.none(), identity))
    folder, manifest = found.folder, found.manifest
    try:
        if fell_back is not None and fell_back.model is not None:
            refuse_other_model(fell_back.damaged, fell_back.model, identity.model)
        schedule = schedule_to_resume_with(folder, manifest, identity, schedule, options)
    except CheckpointError as error:  # every rank has read the same manifest and comes to the same end
        raise Refusal(str(error)) from None
    weights_only = uses_weights_only(manifest, options)
    progress = Progress.none() if weights_only else Progress(**manifest.counters())
    differing = changes(manifest, identity, schedule, with_optimizer=not (options.no_load_optim or weights_only))
    is_other = bool(training_changes(manifest, identity.training)) and not weights_only
    start = _start(
        "finetuned" if weights_only else "resumed",
        progress,
        identity,
        loaded_from=str(folder),
        changes=(*differing, *step_change(found, options), *([fell_back.change] if fell_back else [])),
        allowed_by=_allowed_by(options) if is_other else None,
        from_memory=manifest.saved is not None and manifest.saved.from_memory,
    )
    return Resumption(found, progress, schedule, start, fell_back)


def _find(options: Options) -> tuple[Found | None, FellBack | None]:
    """Return the checkpoint to resume from, and the one that it replaces if --load-fallback had to choose."""
    if not options.load:
        return None, None
    if options.load_step is not None:
        return find_at_step(options), None
    root, with_checksums = Path(options.load), not options.no_verify_checkpoint_checksums
    if not options.load_fallback:
        return find_latest(root, with_checksums), None
    fell_back = find_instead_of_a_damaged_one(root, with_checksums)
    return (fell_back.instead, fell_back) if fell_back else (find_latest(root, with_checksums=False), None)


def _start(kind: str, progress: Progress, identity: Identity, **more: Any) -> Start:
    return started_now(kind=kind, iteration=progress.iteration, layout=identity.layout, **more)


def _allowed_by(options: Options) -> str:
    return " ".join((ALLOW, *options.allow_changed))


def with_sample_order(
    options: Options, identity: Identity, resumption: Resumption, dataset: Dataset | None
) -> tuple[Identity, Resumption]:
    """Both with the order in which `dataset` serves samples, which is known only once it is built.

    What only the checkpoint knows of its training stays known. Collective. Raises Refusal when the checkpoint's
    training had another order.
    """
    identity = _with_what_is_known(options, identity, resumption)
    if not isinstance(dataset, GPTDataset | BlendedDataset):
        return identity, resumption
    order = from_first_rank(lambda: sample_order(dataset), ())
    identity = replace(identity, training={**identity.training, "sample_order": order})
    if resumption.found is None:
        return identity, resumption
    folder, manifest = resumption.found.folder, resumption.found.manifest
    differing = training_changes(manifest, {"sample_order": order})
    # What decides it and is another was let through by name: the order follows.
    is_anew = resumption.start.kind == "finetuned"
    if differing and not is_anew and not resumption.start.allowed_by:
        try:
            refuse_other_training(folder, manifest, {"sample_order": order}, options.allow_changed or ())
        except CheckpointError as error:
            raise Refusal(str(error)) from None
    allowed_by = _allowed_by(options) if differing and not is_anew else resumption.start.allowed_by
    start = msgspec.structs.replace(
        resumption.start, changes=(*resumption.start.changes, *differing), allowed_by=allowed_by
    )
    return identity, replace(resumption, start=start)


def _with_what_is_known(options: Options, identity: Identity, resumption: Resumption) -> Identity:
    """Return the identity, completed by facts of the checkpoint's training that this start does not set.

    Otherwise a start without an option would let every later one silently take another value.
    """
    if resumption.found is None or resumption.start.kind == "finetuned":
        return identity
    before, given_up = resumption.found.manifest.training, options.allow_changed or ()
    known = {
        name: value
        for name, value in before.items()
        if value is not None and identity.training.get(name) is None and name not in given_up
    }
    return replace(identity, training={**identity.training, **known})


def load_into(engine: PipelineEngine, resumption: Resumption, options: Options) -> None:
    """Load the checkpoint's weights and, unless told not to, optimizer and random states. Collective."""
    if resumption.found is None:
        return
    weights_only = uses_weights_only(resumption.found.manifest, options)
    state = load_checkpoint(engine, resumption.found, not options.no_load_optim, weights_only)
    if not options.no_load_rng and not weights_only:
        restore_random_states(state)


def progress_on_disk(options: Options) -> Progress:
    """Return the counters of a training that leaves before it begins; zeros at a beginning, or if unknown."""
    if not options.load or options.finetune:
        return Progress.none()
    try:
        if options.load_step is not None:
            return Progress(**found_at_step(options).manifest.counters())
        folder = latest_folder(Path(options.load))
        manifest = read_manifest(folder) if folder else None
    except CheckpointError:
        manifest = None
    return Progress(**manifest.counters()) if manifest else Progress.none()


_LARGEST_NOTE_BYTES = 64 * 1024


class Place:
    """A file's place in a folder that is held from now on; none without a path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._folder = HeldFolder(path.parent) if path is not None else None
        if self._folder is not None:
            with contextlib.suppress(OSError):  # it may come later
                self._folder.descriptor()

    def is_taken(self) -> bool:
        """Return whether anything exists there. Its content is not read."""
        return self._folder is not None and self._path is not None and self._folder.has(self._path.name)

    def read(self, name: str | None = None) -> bytes:
        """Return the contents of the file, or of `name` next to it; empty without a path. Raises OSError."""
        if self._folder is None or self._path is None:
            return b""
        return read_plain(self._folder.place() / (name or self._path.name), _LARGEST_NOTE_BYTES)

    def write(self, text: str, name: str | None = None) -> None:
        """Write the file, or the one called `name` beside it. Raises OSError."""
        if self._folder is not None and self._path is not None:
            write_atomically(self._folder.place() / (name or self._path.name), text)


@dataclass(frozen=True)
class Contents:
    """All of a checkpoint but weights and optimizer states."""

    manifest: Manifest  # without its files
    client_state: dict[str, Any]  # plain data for DeepSpeed's own files


class LastLoss(Observer):
    """The loss of the last step, available once it is taken."""

    def __init__(self) -> None:
        self._loss: float | None = None
        self.is_finite = True  # an fp16 step whose gradients overflow has a finite loss all the same
        self._without = range(0)  # iterations without a finite loss, up to the last step or right before it

    def after_step(self, step: Step) -> None:
        """Keep it; a step that was skipped has none."""
        was_finite, iteration = self.is_finite, step.progress.iteration
        if step.result is None:
            self._without = range(0) if was_finite else self._without
            return
        self.is_finite = math.isfinite(step.result.loss)
        self._loss = step.result.loss if self.is_finite else None  # JSON has no other
        if was_finite:
            self._without = range(0) if self.is_finite else range(iteration, iteration + 1)
        else:
            self._without = range(self._without.start, iteration if self.is_finite else iteration + 1)

    def after_going_back(self, progress: Progress) -> None:
        """Forget the loss; the next step sets it before it is read."""
        self._loss, self.is_finite, self._without = None, True, range(0)

    def postponing(self, is_due: Callable[[int], bool]) -> Callable[[int], bool]:
        """Return `is_due` for the iteration of the last step; with a finite loss, a postponed save is due too."""
        return lambda iteration: is_due(iteration) or (self.is_finite and any(map(is_due, self._without)))

    def __call__(self) -> float | None:
        """None before the first step, and of a loss that is no number."""
        return self._loss


def contents_of(
    options: Options,
    identity: Identity,
    schedule: LearningRateSchedule,
    history: tuple[Start, ...],
    loss: Callable[[], float | None],
    guard: Callable[[], GuardState | None] = lambda: None,
    not_finite: Callable[[], str | None] = lambda: None,
) -> Callable[[Progress], Contents]:
    """Return a function that describes the training's progress at the moment of a save.

    history: every start of the training, this one's last. loss: of the last step. guard: the spike guard's memory after
    it. not_finite: what of the state is not finite, if such a state is saved; collective.
    """
    layout = {**identity.layout, "optimizer": NO_OPTIMIZER} if options.no_save_optim else identity.layout
    pinned = SaveSchedule.of(options).pinned
    parameters = saved_parameters(ModelShape.of_facts(identity.model))

    def contents(progress: Progress) -> Contents:
        manifest = Manifest(
            **progress.counters(),
            precision=identity.precision,
            layout=layout,
            model=identity.model,
            learning_rate=schedule.facts(),
            files={},
            parameters=parameters,
            pinned=progress.iteration in pinned,
            training=identity.training,
            settings=identity.settings,
            loss=loss(),
            saved=saved_now(),
            history=history,
            spike_guard=guard(),
            not_finite=not_finite(),
        )
        state = {
            "checkpoint_version": 3.0,
            "args": dict(options),
            "iteration": progress.iteration,
            "tokens": progress.consumed_train_tokens,
            "consumed_train_samples": progress.consumed_train_samples,
            "consumed_valid_samples": progress.consumed_valid_samples,
            "checkpoint_info": {
                "padded_vocab_size": identity.model["padded_vocab_size"],
                "original_vocab_size": identity.model["vocab_size"],
            },
            INFO: universal_checkpoint_info(identity.model),
            **({} if options.no_save_rng else random_states()),
        }
        return Contents(manifest, state)

    return contents
