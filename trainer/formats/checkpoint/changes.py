"""Changes between a checkpoint's training and the one that resumes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.formats.checkpoint.history import Change
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.data import data_identity
from trainer.formats.errors import CheckpointError
from trainer.recipe.identity import EVALUATION_DATA, ONCE_UNKNOWN, TRAINING, settings_in_force, training_facts
from trainer.recipe.layout import Layout
from trainer.recipe.learning_rate import ABSENT, LearningRateSchedule
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape


def layout_facts(options: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """Return the facts that decide how the weights and optimizer states are split into files."""
    layout = Layout.of(options, world_size)
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "world_size": layout.world_size,
        "partition_method": options["pp_partition_method"],
        "zero_stage": 1,  # --zero-stage 0 means the same
        "optimizer": options["optimizer"],
    }


@dataclass(frozen=True)
class Identity:
    """The identity of a training: a checkpoint that differs from it belongs to another training."""

    model: dict[str, Any]
    layout: dict[str, Any]
    precision: str
    training: dict[str, Any] = field(default_factory=dict)  # the known facts of `identity.TRAINING`
    settings: dict[str, Any] = field(default_factory=dict)  # the current values of `identity.SETTINGS`, EVALUATION_DATA

    @classmethod
    def of(
        cls, options: Mapping[str, Any], world_size: int, vocabulary: Vocabulary, data: Mapping[str, Any] | None = None
    ) -> Identity:
        """Return the identity of the training that the options describe. Raises ValueError if the ranks do not divide.

        data: `data_identity.data_facts`, if the data was read.
        """
        shape, known = ModelShape.of(options, vocabulary), data or {}
        evaluated = {name: known[name] for name in EVALUATION_DATA if name in known}
        trained = {name: value for name, value in known.items() if name not in evaluated}
        return cls(
            model=shape.facts(),
            layout=layout_facts(options, world_size),
            precision=shape.precision,
            training={**training_facts(options), **trained},
            settings={**settings_in_force(options), **evaluated},
        )


#: The option that allows loading another training's checkpoint.
ALLOW = "--allow-changed"
#: The options that set other parts of a manifest.
_LAYOUT = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "data": "data_parallel_size",
    "partition_method": "pp_partition_method",
}
_SCHEDULE = {
    "max_lr": "lr",
    "min_lr": "min_lr",
    "warmup_samples": "lr_warmup_samples",
    "decay_samples": "lr_decay_samples",
    "style": "lr_decay_style",
    "wsd_decay_samples": "lr_wsd_decay_samples",
    "wsd_decay_style": "lr_wsd_decay_style",
}
_SAID = {
    **{fact.name: fact.said for fact in TRAINING},
    **{name: f"the {name.removesuffix('_data')} data" for name in EVALUATION_DATA},
    **dict.fromkeys(("data_parallel_size", "precision", "padded_vocab_size", "optimizer_states"), ""),
}


def refuse_other_training(
    folder: Path, manifest: Manifest, training: Mapping[str, Any], allowed: Sequence[str]
) -> None:
    """Raise CheckpointError if the training differs in facts other than `allowed`. The error shows both values."""
    changed = [change for change in training_changes(manifest, training) if change.name not in allowed]
    if changed:
        names = " ".join(change.name for change in changed)
        raise CheckpointError(
            f"{folder} belongs to another training: {'; '.join(map(change_text, changed))}: give the checkpoint's, or "
            f"{ALLOW} {names} to continue with the new"
        )


def training_changes(manifest: Manifest, training: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return the changes in `identity.TRAINING`. A value that one side does not have is not compared."""
    both = [
        (fact.name, manifest.training[fact.name], training[fact.name])
        for fact in TRAINING
        if manifest.training.get(fact.name) is not None and training.get(fact.name) is not None
    ]
    return tuple(Change(name, before, now) for name, before, now in both if not _agree(before, now))


def changes(
    manifest: Manifest, identity: Identity, schedule: LearningRateSchedule, with_optimizer: bool = True
) -> tuple[Change, ...]:
    """Return all changes between a checkpoint and the training that resumes from it with `schedule`."""
    return tuple(_changes(manifest, identity, schedule, with_optimizer))


def _changes(
    manifest: Manifest, identity: Identity, schedule: LearningRateSchedule, with_optimizer: bool
) -> Iterator[Change]:
    yield from training_changes(manifest, identity.training)
    yield from _others(manifest.model, identity.model)
    yield from _others({"precision": manifest.precision}, {"precision": identity.precision})
    # The world size follows from the other sizes.
    layout = {name: value for name, value in identity.layout.items() if name != "world_size"}
    yield from _others(manifest.layout, layout, _LAYOUT)
    yield from _others(_whole(manifest.learning_rate), asdict(schedule), _SCHEDULE)
    before = {**ONCE_UNKNOWN, **manifest.settings} if manifest.settings else {}
    yield from _others(before, identity.settings)
    if not with_optimizer:
        yield Change("optimizer_states", "the checkpoint's", "fresh")


def _whole(learning_rate: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a manifest's schedule with defaults for missing fields; empty if the manifest has no schedule."""
    return {**ABSENT, **learning_rate} if learning_rate else {}


def _others(before: Mapping[str, Any], now: Mapping[str, Any], names: Mapping[str, str] | None = None) -> list[Change]:
    return [
        Change((names or {}).get(name, name), before[name], value)
        for name, value in now.items()
        if name in before and not _agree(before[name], value)
    ]


def _agree(before: Any, now: Any) -> bool:
    """Return True if two values are equal. For two objects, only their common keys are compared."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return all(_agree(before[key], now[key]) for key in before.keys() & now.keys())
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        return len(before) == len(now) and all(map(_agree, before, now))
    return bool(before == now)


def change_text(change: Change) -> str:
    """Return a change as text, with both values."""
    name = _SAID.get(change.name, f"--{change.name.replace('_', '-')}") or change.name.replace("_", " ")
    if change.name == "train_data":
        return f"{name} {data_identity.sources_text(change.before)} -> {data_identity.sources_text(change.now)}"
    if change.name in EVALUATION_DATA:
        return f"{name} {_groups_text(change.before)} -> {_groups_text(change.now)}"
    return f"{name} {_value_text(change.before)} -> {_value_text(change.now)}"


def _groups_text(groups: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['group']}: {data_identity.sources_text(one['sources'])}" for one in groups) or "none"


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
