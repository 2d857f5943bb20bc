"""Whether a checkpoint belongs to the training that wants to go on from it. Pure; every difference is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.formats.checkpoint.changes import refuse_other_training
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.training_identity import Identity
from trainer.formats.errors import CheckpointError
from trainer.recipe.learning_rate import ABSENT, LearningRateSchedule

#: In a manifest, the optimizer of a checkpoint without optimizer states.
NO_OPTIMIZER = "none"
#: In its history, the start of a model that was published elsewhere.
IMPORTED = "imported"

# The schedule's fields, as Megatron calls them when it refuses.
_SCHEDULE_NAMES = {
    "max_lr": "learning rate",
    "min_lr": "minimum learning rate",
    "warmup_samples": "warmup iterations",
    "decay_samples": "total number of iterations",
    "style": "decay style",
    "wsd_decay_samples": "WSD decay iterations",
    "wsd_decay_style": "WSD decay style",
    "cooldown_at": "cooldown at sample",
    "cooldown_samples": "cooldown samples",
    "cooldown_style": "cooldown style",
}
_COOLDOWN = ("cooldown_at", "cooldown_samples", "cooldown_style")


def begins_anew(manifest: Manifest, options: Mapping[str, Any]) -> bool:
    """Whether of a checkpoint the weights alone count, and the training that loads them is at its very beginning.

    So it is where somebody says it, and with an imported model: every later task of its chain has a checkpoint of the
    training's own, which --finetune would begin anew each time.
    """
    return bool(options["finetune"]) or is_imported(manifest)


def is_imported(manifest: Manifest) -> bool:
    """Whether a checkpoint is a model that came from outside, and no training of ours has made a step from it."""
    return manifest.iteration == 0 and bool(manifest.history) and manifest.history[-1].kind == IMPORTED


def schedule_to_resume_with(
    folder: Path, manifest: Manifest, identity: Identity, given: LearningRateSchedule, options: Mapping[str, Any]
) -> LearningRateSchedule:
    """The schedule with which the training that `options` describe goes on from a checkpoint.

    Raises CheckpointError, one line, for the first thing by which the checkpoint is another training's.
    """
    weights_only = begins_anew(manifest, options)
    with_optimizer = not (options["no_load_optim"] or weights_only)
    refuse_other_model(folder, manifest, identity.model)
    refuse_other_layout(folder, manifest, identity.layout, identity.precision, with_optimizer)
    if not options["finetune"]:
        refuse_other_training(folder, manifest, identity.training, options["allow_changed"] or ())
    if weights_only:
        return given
    override, use_checkpoint = options["override_lr_scheduler"], options["use_checkpoint_lr_scheduler"]
    return schedule_to_use(folder, manifest, given, override, use_checkpoint)


def is_whole_state_of(manifest: Manifest, identity: Identity) -> bool:
    """Whether a checkpoint has this model's weights and this optimizer's states, in its precision."""
    try:
        refuse_other_model(Path(), manifest, identity.model)
        refuse_other_layout(Path(), manifest, identity.layout, identity.precision, with_optimizer=True)
    except CheckpointError:
        return False
    return True


def refuse_other_model(folder: Path, manifest: Manifest, model: Mapping[str, Any]) -> None:
    """Raise CheckpointError, naming the option and both values, unless the checkpoint's model is this one."""
    for name in (*model, *(name for name in manifest.model if name not in model)):
        stored, value = manifest.model.get(name), model.get(name)
        if name == "vocab_size" and stored is None:  # of the first schema, which has the padded size alone
            continue
        if name == "padded_vocab_size" and manifest.model.get("vocab_size") == model.get("vocab_size") is not None:
            continue  # padding is cut off or added as the layout needs it
        if stored != value:
            raise CheckpointError(
                f"{folder}: {name} value from checkpoint ({stored}) is not equal to the input argument "
                f"value ({value}): {_way_to(name, stored)}, or another --load"
            )


def _way_to(name: str, stored: Any) -> str:
    """What to do on the command line so that a fact of the model is the checkpoint's."""
    option = "--pad-vocab-size-to" if name == "padded_vocab_size" else f"--{name.replace('_', '-')}"
    if isinstance(stored, bool) or stored is None:
        return f"give {option}" if stored else f"leave {option} out"
    return f"give {option} {stored}"


def refuse_other_layout(
    folder: Path, manifest: Manifest, layout: Mapping[str, Any], precision: str, with_optimizer: bool
) -> None:
    """Raise CheckpointError unless the optimizer's states are this training's. How ranks share them is all one."""
    if not with_optimizer:
        return
    if manifest.precision != precision:
        raise CheckpointError(
            f"{folder} was saved in {manifest.precision}, this training is in {precision}: "
            f"give {'neither --bf16 nor --fp16' if manifest.precision == 'fp32' else '--' + manifest.precision}, "
            "or --finetune"
        )
    if manifest.layout.get("optimizer") == NO_OPTIMIZER:
        raise CheckpointError(f"{folder} was saved without optimizer states (--no-save-optim): give --no-load-optim")
    if manifest.layout.get("optimizer") != layout["optimizer"]:
        raise CheckpointError(
            f"{folder} was saved with --optimizer {manifest.layout.get('optimizer')}, this training has "
            f"{layout['optimizer']}: give the checkpoint's, or --no-load-optim"
        )


def schedule_to_use(
    folder: Path, manifest: Manifest, given: LearningRateSchedule, override: bool, use_checkpoint: bool
) -> LearningRateSchedule:
    """The schedule to go on with. Raises CheckpointError with every changed value unless told which side to believe.

    A cooldown that is to come is no change of what was trained so far, so a checkpoint without one takes it, also where
    the rest of its schedule is kept.
    """
    stored = {**ABSENT, **manifest.learning_rate}
    if override:
        return given
    start = given.cooldown_at if stored["cooldown_at"] is None else None
    if start is not None and manifest.consumed_train_samples > start:
        raise CheckpointError(
            f"{folder} is at sample {manifest.consumed_train_samples}, past --lr-cooldown-at-samples "
            f"{start}, where the learning rate is to come down: give its sample or a later one, or begin "
            "at an earlier checkpoint (--load-step)"
        )
    if use_checkpoint:
        added = {name: getattr(given, name) for name in _COOLDOWN} if start is not None else {}
        return LearningRateSchedule.of_facts({**{name: stored[name] for name in _SCHEDULE_NAMES}, **added})
    changed = [
        f"{_SCHEDULE_NAMES[name]} {stored.get(name)} -> {value}"
        for name, value in asdict(given).items()
        if stored.get(name) != value and not (start is not None and name in _COOLDOWN)
    ]
    if changed:
        raise CheckpointError(
            f"{folder}: the learning rate schedule changed ({', '.join(changed)}): give --override-lr-scheduler "
            "to take the new one or --use-checkpoint-lr-scheduler to keep the checkpoint's"
        )
    return given
