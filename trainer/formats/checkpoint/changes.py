"""Changes between a checkpoint's training and the one that resumes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.formats.checkpoint.history import Change
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.data import data_identity
from trainer.formats.data.data_sources import Source, groups, tokens_of
from trainer.formats.data.index_header import read_header
from trainer.formats.errors import CheckpointError
from trainer.recipe.identity import EVALUATION_DATA, ONCE_UNKNOWN, TRAINING, settings_in_force, training_facts
from trainer.recipe.layout import Layout
from trainer.recipe.learning_rate import ABSENT, LearningRateSchedule
from trainer.recipe.lengths import End, EpochPlan, plan_epochs, sizes_to_build
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


#: The settings that decide a length.
_LENGTH = ("train_samples", "train_iters", "train_tokens", "global_batch_size", "rampup_batch_size")
_THRESHOLD = "separate_last_epoch_threshold"
#: With fewer samples, or one document, another order may begin with the same samples by chance.
_PLACES = 16
#: For a part of a larger file, adding up the lengths takes too long.
_MOST_LENGTHS = 20_000_000


def sample_order_change(manifest: Manifest, options: Mapping[str, Any]) -> str | None:
    """Return the changes that reorder the samples, with both values; None without any, or if it cannot be determined.

    Raises DataError if the data's headers cannot be read, and OSError.
    """
    order, settings = manifest.training.get("sample_order"), manifest.settings
    if not order or any(name not in settings for name in (*_LENGTH, _THRESHOLD)):
        return None
    before, now = (_samples_to_read(one, manifest) for one in ({**options, **settings}, options))
    thresholds = settings[_THRESHOLD], options[_THRESHOLD]
    if before is None or now is None or (before, thresholds[0]) == (now, thresholds[1]):
        return None
    (group,) = groups(options, "train")
    if len(group.sources) > 1 and "sources" not in order:
        return None  # the first samples of a blend may contain none of the file whose order changed
    asked = zip(group.sources, _sizes(group.sources, before), _sizes(group.sources, now), strict=True)
    for source, *sizes in asked:
        tokens = _tokens(source, max(sizes) * options["seq_length"] + 1)
        if tokens is None:
            continue
        plans = [plan_epochs(tokens, options["seq_length"], *one) for one in zip(sizes, thresholds, strict=True)]
        if min(one.samples for one in plans) >= _PLACES and _shuffles(plans[0]) != _shuffles(plans[1]):
            before_text, now_text = map(_plan_text, plans)
            return f"{before_text} -> {now_text} over {source.prefix} for {before:,} -> {now:,} samples"
    return None


def _samples_to_read(options: Mapping[str, Any], manifest: Manifest) -> int | None:
    """Return the number of samples in the trainer's orders; None if it depended on where its process began."""
    if options["train_tokens"] is not None:
        return None
    if options["train_iters"] is not None:
        batch = options["global_batch_size"]
        is_even = manifest.consumed_train_samples == manifest.iteration * batch
        if options["rampup_batch_size"] is not None or not is_even:
            return None
    return End.of(options).samples_to_read(manifest)


def _sizes(sources: Sequence[Source], samples: int) -> list[int]:
    """Return the number of samples to build of each source."""
    weights = [source.weight for source in sources]
    if weights == [None]:
        return [samples]
    in_all = math.fsum(weight or 0.0 for weight in weights)
    return sizes_to_build([(weight or 0.0) / in_all for weight in weights], samples)


def _tokens(source: Source, enough: int) -> int | None:
    """Return a source's tokens, counted up to `enough`; None for one document or too many lengths."""
    header = read_header(source.prefix)
    first, last = source.documents(header.sequences)
    if last - first < 2:
        return None
    if (first, last) == (0, header.sequences):
        return header.tokens
    return tokens_of(header, first, last, enough) if last - first <= _MOST_LENGTHS else None


def _shuffles(plan: EpochPlan) -> tuple[int, bool]:
    """Return the parts of a plan that its shuffles depend on."""
    return plan.epochs, plan.separate_last_epoch


def _plan_text(plan: EpochPlan) -> str:
    passes = f"{plan.epochs} pass{'es' if plan.epochs > 1 else ''}"
    return f"{passes}, the last apart" if plan.separate_last_epoch else passes
