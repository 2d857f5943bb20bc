"""The contents of one checkpoint as text and as JSON, from its manifest, without reading a weight."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import write_state
from opsctl.core.output import printable
from opsctl.core.timestamps import iso, now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.listing import saved_at
from trainer.formats.checkpoint.exchanged import VERIFIED, Verification
from trainer.formats.checkpoint.history import Start
from trainer.formats.checkpoint.manifest import Manifest, fault_of, latest_folder, read_manifest
from trainer.formats.checkpoint.partitions import parameters_of
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import Moment
from trainer.recipe.learning_rate import LearningRateSchedule

_LABEL_WIDTH, _WIDTH = 14, 100


class ShownChange(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that changed at a start."""

    name: Annotated[str, Meta(description="An option's name, or a manifest's key.")]
    before: Annotated[Any, Meta(description="The old value.")] = msgspec.field(name="from")
    now: Annotated[Any, Meta(description="The new value.")] = msgspec.field(name="to")


class ShownStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the training that led to a checkpoint."""

    at: Annotated[Moment, Meta(description="When.")]
    by: Annotated[str, Meta(description="User and host, as user@host.")]
    kind: Annotated[str, Meta(description="`began`, `resumed`, `finetuned`, `imported` or `converted`.")]
    iteration: Annotated[int, Meta(description="Iterations done when it started.")]
    loaded_from: Annotated[str | None, Meta(description="The checkpoint's folder, or the imported source.")]
    layout: Annotated[dict[str, int | str], Meta(description="Layout of its ranks.")]
    changes: Annotated[list[ShownChange], Meta(description="Differences from the previous start.")]
    allowed_by: Annotated[str | None, Meta(description="The option that allowed another training's checkpoint.")]
    attempt: Annotated[str | None, Meta(description="The job's id.")]
    revision: Annotated[int | None, Meta(description="The run's revision.")]


class ShownCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint; null or empty for facts that an older trainer did not record."""

    iteration: Annotated[int, Meta(description="Iterations done when it was saved.")]
    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    latest: Annotated[bool, Meta(description="True if the next task resumes from it.")]
    pinned: Annotated[bool, Meta(description="True if it is pinned, so that prune keeps it.")]
    problem: Annotated[str | None, Meta(description="Why it is incomplete, by its files' sizes; else null.")]
    not_finite: Annotated[
        str | None, Meta(description="Which numbers are NaN or infinite (`--save-non-finite`); null: none.")
    ]
    files: Annotated[int, Meta(description="Number of its files.")]
    bytes: Annotated[int, Meta(description="Size of its files together.")]
    manifest_schema: Annotated[int, Meta(description="The manifest's schema version.")]
    precision: Annotated[str, Meta(description="`fp32`, `bf16` or `fp16`.")]
    parameters: Annotated[int | None, Meta(description="Parameters of the model, padding rows counted.")]
    model: Annotated[dict[str, Any], Meta(description="Options that determine the shape of the weights.")]
    layout: Annotated[dict[str, int | str], Meta(description="Layout of the ranks that saved it.")]
    consumed_samples: Annotated[int, Meta(description="Samples trained on.")]
    consumed_tokens: Annotated[int, Meta(description="Tokens trained on.")]
    loss: Annotated[float | None, Meta(description="Loss of the last step.")]
    learning_rate: Annotated[float | None, Meta(description="Learning rate of the next step, by the saved schedule.")]
    saved_at: Annotated[Moment | None, Meta(description="When.")]
    saved_by: Annotated[str | None, Meta(description="User and host, as user@host.")]
    attempt: Annotated[str | None, Meta(description="The id of the job that saved it.")]
    revision: Annotated[int | None, Meta(description="The run's revision that was trained.")]
    training: Annotated[dict[str, Any], Meta(description="Facts that identify the training.")]
    settings: Annotated[dict[str, Any], Meta(description="Settings that may change, at the time of the save.")]
    history: Annotated[list[ShownStart], Meta(description="Every start of the training, the first one first.")]


def shown(folder: Path) -> ShownCheckpoint:
    """Return the contents of the manifest in `folder`. Raises CheckpointError if it cannot be read."""
    manifest = read_manifest(folder)
    try:
        latest = latest_folder(folder.parent)
    except CheckpointError:
        latest = None
    saved = manifest.saved
    return ShownCheckpoint(
        iteration=manifest.iteration,
        folder=str(folder),
        latest=folder == latest,
        pinned=manifest.pinned,
        problem=fault_of(folder),
        not_finite=manifest.not_finite,
        files=len(manifest.files),
        bytes=sum(file.bytes for file in manifest.files.values()),
        manifest_schema=manifest.schema_version,
        precision=manifest.precision,
        parameters=_parameters(manifest),
        model=manifest.model,
        layout=manifest.layout,
        consumed_samples=manifest.consumed_train_samples,
        consumed_tokens=manifest.consumed_train_tokens,
        loss=manifest.loss,
        learning_rate=_learning_rate(manifest),
        saved_at=saved.at if saved else saved_at(folder),
        saved_by=f"{saved.user}@{saved.host}" if saved else None,
        attempt=saved.attempt if saved else None,
        revision=saved.revision if saved else None,
        training=manifest.training,
        settings=manifest.settings,
        history=[_start(one) for one in manifest.history],
    )


def lines_of(one: ShownCheckpoint) -> Iterator[str]:
    """Yield the lines of the report."""
    marks = [word for word, holds in (("the latest", one.latest), ("pinned", one.pinned)) if holds]
    yield printable(one.folder + (f" ({', '.join(marks)})" if marks else ""))
    finite = f"; not finite: {one.not_finite}" if one.not_finite else ""
    yield from _row("state", f"{one.problem or 'complete'}; {one.files:,} files, {bytes_words(one.bytes)}{finite}")
    origin = _origin(one.saved_by, one.attempt, one.revision)
    yield from _row("saved", f"{iso(one.saved_at) or 'time unknown'}{origin}")
    yield from _row(
        "reached",
        f"iteration {one.iteration:,}"
        + (f", {one.consumed_samples:,} samples, {one.consumed_tokens:,} tokens" if one.precision != "unknown" else "")
        + ("" if one.loss is None else f", loss {one.loss:.6g}")
        + ("" if one.learning_rate is None else f", learning rate {one.learning_rate:.4g}"),
    )
    if one.precision == "unknown":  # of another training program, whose files alone are known
        return
    count = "" if one.parameters is None else f", {one.parameters:,} parameters"
    yield from _row("model", f"{one.precision}{count}; {_pairs(one.model)}")
    yield from _row("layout", _layout(one.layout))
    for label, facts in (("training", one.training), ("settings", one.settings)):
        if facts:
            yield from _row(label, _pairs(facts))
    yield from _history(one)


def _history(one: ShownCheckpoint) -> Iterator[str]:
    if not one.history:
        yield from _row("history", "not recorded by the trainer that saved it")
    for number, start in enumerate(one.history):
        parts = [f"{iso(start.at)} {start.kind} at iteration {start.iteration:,}"]
        parts.append(_origin(start.by, start.attempt, start.revision))
        parts.append(f", from {start.loaded_from}" if start.loaded_from else "")
        parts.append(f", {_layout(start.layout)}" if start.layout else "")
        yield from _row("history" if not number else "", "".join(parts))
        for change in start.changes:
            yield from _row("", f"  {change.name}: {_value(change.before)} -> {_value(change.now)}")
        if start.allowed_by:
            yield from _row("", f"  another training's checkpoint, allowed by {start.allowed_by}")


def _start(one: Start) -> ShownStart:
    return ShownStart(
        at=one.at,
        by=f"{one.user}@{one.host}",
        kind=one.kind,
        iteration=one.iteration,
        loaded_from=one.loaded_from,
        layout=one.layout,
        changes=[ShownChange(name=change.name, before=change.before, now=change.now) for change in one.changes],
        allowed_by=one.allowed_by,
        attempt=one.attempt,
        revision=one.revision,
    )


def _parameters(manifest: Manifest) -> int | None:
    try:
        return sum(math.prod(one.shape) for one in parameters_of(manifest))
    except (CheckpointError, KeyError, TypeError, ValueError):  # a model that this release does not know
        return None


def _learning_rate(manifest: Manifest) -> float | None:
    try:
        return LearningRateSchedule.of_facts(manifest.learning_rate).at(manifest.consumed_train_samples)
    except (TypeError, ValueError, ZeroDivisionError):  # imported weights have none
        return None


def _origin(by: str | None, attempt: str | None, revision: int | None) -> str:
    parts = [f" by {by}"] if by else []
    parts += [f", job {attempt}"] if attempt else []
    parts += [f", revision {revision}"] if revision is not None else []
    return "".join(parts)


def _layout(layout: Mapping[str, int | str]) -> str:
    named = [(short, layout.get(key)) for short, key in (("TP", "tensor"), ("PP", "pipeline"), ("DP", "data"))]
    ranks = " x ".join(f"{short} {size}" for short, size in named if size is not None)
    rest = {key: value for key, value in layout.items() if key not in ("tensor", "pipeline", "data")}
    return f"{ranks}; {_pairs(rest)}" if rest else ranks


def _pairs(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_value(value)}" for key, value in facts.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"({_pairs(value)})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _row(label: str, text: str) -> Iterator[str]:
    indent = " " * (_LABEL_WIDTH + 2)
    begin = len(text) - len(text.lstrip())
    wrapped = textwrap.wrap(
        printable(text), _WIDTH - len(indent), break_on_hyphens=False, subsequent_indent=" " * (begin + 2)
    )
    for number, line in enumerate(wrapped or [""]):
        yield f"  {label if not number else '':<{_LABEL_WIDTH}}{line}".rstrip()


#: Problems that are recorded; more do not change the result.
_MOST_PROBLEMS = 100


class VerifiedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose files were all read."""

    folder: Annotated[str, Meta(description="Absolute path of its folder.")]
    files: Annotated[int, Meta(description="Number of files that its manifest names.")]
    bytes: Annotated[int, Meta(description="Total size of these files.")]
    problems: Annotated[list[str], Meta(description="Problems, one sentence for each file; empty if complete.")]
    damage: Annotated[
        list[str],
        Meta(description="Problems that prove damage, without those of permissions or servers."),
    ] = []
    manifest_xxh64: Annotated[
        str | None, Meta(description="Checksum of the manifest that the files were compared with; null if unreadable.")
    ] = None


def record_verification(output: Path, found: VerifiedCheckpoint) -> None:
    """Write the result next to the checkpoint's files, if it proves anything. Raises OpsctlError."""
    if found.manifest_xxh64 is None or (found.problems and not found.damage):
        return
    path = Path(found.folder) / VERIFIED
    problems = tuple(found.damage[:_MOST_PROBLEMS])
    at = now().replace(microsecond=0)
    record = Verification(manifest_xxh64=found.manifest_xxh64, at=at, by=account_and_host(), problems=problems)
    try:
        write_state(output, path, record)
    except OSError as error:
        raise OpsctlError(f"the result was not recorded: {file_problem(error, path)}") from None
