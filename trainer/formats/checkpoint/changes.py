"""What is another than it was when a checkpoint was saved: refused where it makes another training, told where not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.formats.checkpoint.history import Change
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.training_identity import Identity
from trainer.formats.data import data_identity
from trainer.formats.errors import CheckpointError
from trainer.recipe.identity import EVALUATION_DATA, ONCE_UNKNOWN, TRAINING
from trainer.recipe.learning_rate import ABSENT, LearningRateSchedule

#: The option that lets another training's checkpoint through.
ALLOW = "--allow-changed"
#: How a manifest's other parts are called by the options that set them.
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
    "cooldown_at": "lr_cooldown_at_samples",
    "cooldown_samples": "lr_cooldown_samples",
    "cooldown_style": "lr_cooldown_style",
}
_SAID = {
    **{fact.name: fact.said for fact in TRAINING},
    **{name: f"the {name.removesuffix('_data')} data" for name in EVALUATION_DATA},
    **dict.fromkeys(("data_parallel_size", "precision", "padded_vocab_size", "optimizer_states"), ""),
}


def refuse_other_training(
    folder: Path, manifest: Manifest, training: Mapping[str, Any], allowed: Sequence[str]
) -> None:
    """Raise CheckpointError, naming each with both values, where facts differ that are not `allowed`."""
    changed = [change for change in training_changes(manifest, training) if change.name not in allowed]
    if changed:
        names = " ".join(change.name for change in changed)
        raise CheckpointError(
            f"{folder} is of another training: {'; '.join(map(said, changed))}: give the checkpoint's, or "
            f"{ALLOW} {names} to go on with the new"
        )


def training_changes(manifest: Manifest, training: Mapping[str, Any]) -> tuple[Change, ...]:
    """Those of `identity.TRAINING` that differ. What one side does not know is no difference."""
    both = [
        (fact.name, manifest.training[fact.name], training[fact.name])
        for fact in TRAINING
        if manifest.training.get(fact.name) is not None and training.get(fact.name) is not None
    ]
    return tuple(Change(name, before, now) for name, before, now in both if not _agree(before, now))


def changes(
    manifest: Manifest, identity: Identity, schedule: LearningRateSchedule, with_optimizer: bool = True
) -> tuple[Change, ...]:
    """All that differs between a checkpoint and what goes on from it with `schedule`."""
    return tuple(_changes(manifest, identity, schedule, with_optimizer))


def _changes(
    manifest: Manifest, identity: Identity, schedule: LearningRateSchedule, with_optimizer: bool
) -> Iterator[Change]:
    yield from training_changes(manifest, identity.training)
    yield from _others(manifest.model, identity.model)
    yield from _others({"precision": manifest.precision}, {"precision": identity.precision})
    layout = {name: value for name, value in identity.layout.items() if name != "world_size"}  # follows from the rest
    yield from _others(manifest.layout, layout, _LAYOUT)
    yield from _others(_whole(manifest.learning_rate), asdict(schedule), _SCHEDULE)
    before = {**ONCE_UNKNOWN, **manifest.settings} if manifest.settings else {}
    yield from _others(before, identity.settings)
    if not with_optimizer:
        yield Change("optimizer_states", "the checkpoint's", "fresh")


def _whole(learning_rate: Mapping[str, Any]) -> Mapping[str, Any]:
    """A manifest's schedule with the parts that it does not speak of; empty where it says nothing at all."""
    return {**ABSENT, **learning_rate} if learning_rate else {}


def _others(before: Mapping[str, Any], now: Mapping[str, Any], names: Mapping[str, str] | None = None) -> list[Change]:
    return [
        Change((names or {}).get(name, name), before[name], value)
        for name, value in now.items()
        if name in before and not _agree(before[name], value)
    ]


def _agree(before: Any, now: Any) -> bool:
    """Whether two values are the same as far as both say: of two objects what only one of them has is not compared."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return all(_agree(before[key], now[key]) for key in before.keys() & now.keys())
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        return len(before) == len(now) and all(map(_agree, before, now))
    return bool(before == now)


def said(change: Change) -> str:
    """One change as a person is told of it, both values in it."""
    name = _SAID.get(change.name, f"--{change.name.replace('_', '-')}") or change.name.replace("_", " ")
    if change.name == "train_data":
        return f"{name} {data_identity.said(change.before)} -> {data_identity.said(change.now)}"
    if change.name in EVALUATION_DATA:
        return f"{name} {_groups_said(change.before)} -> {_groups_said(change.now)}"
    return f"{name} {_value_said(change.before)} -> {_value_said(change.now)}"


def _groups_said(groups: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['group']}: {data_identity.said(one['sources'])}" for one in groups) or "none"


def _value_said(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
