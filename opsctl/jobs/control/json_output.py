"""The values that render, submit, revise and cancel print with `--json`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from opsctl.run.state.chains import Chain


class RepointedCheckpoints(Struct, frozen=True, kw_only=True):
    """The change of the latest checkpoint."""

    before: Annotated[int | None, Meta(description="Iteration of the latest before; null if unknown.")] = field(
        name="from"
    )
    to: Annotated[int, Meta(description="Iteration from which the next task resumes.")]
    changed: Annotated[bool, Meta(description="Whether that is another one.")]
    dry_run: Annotated[bool, Meta(description="Whether it would only be so.")]


class PrunedRun(Struct, frozen=True, kw_only=True):
    """The checkpoints of one run that a prune removed, or with `--dry-run` would remove."""

    run: Annotated[str, Meta(description="The run's name.")]
    dry_run: Annotated[bool, Meta(description="Whether it would only be so.")]
    kept: Annotated[dict[str, list[str]], Meta(description="Iteration, as text, to every reason why it stays.")]
    pruned: Annotated[list[int], Meta(description="Iterations of what is gone.")]
    problems: Annotated[list[str], Meta(description="What could not be done, and why; then the command exits 1.")]


class RolledBackRun(Struct, frozen=True, kw_only=True):
    """The effect of a rollback or its undo; with `--dry-run` the planned effect."""

    number: Annotated[int | None, Meta(description="The rollback's number; null where nothing was to do.")]
    before: Annotated[int | None, Meta(description="Iteration of the latest before; null if unknown.")] = field(
        name="from"
    )
    to: Annotated[int, Meta(description="Iteration from which the next task resumes.")]
    checkpoints: Annotated[list[int], Meta(description="Iterations that were moved.")]
    events: Annotated[list[str], Meta(description="TensorBoard's files that were moved, by name.")]
    folder: Annotated[str | None, Meta(description="Where what is set aside lies.")]
    dry_run: Annotated[bool, Meta(description="Whether it would only be so.")]


class RenderedFiles(Struct, frozen=True, kw_only=True):
    """The files that a submit would send to Slurm and publish: file name to text."""

    batch: Annotated[str, Meta(description="The batch script; words replace ids that only a submit creates.")] = field(
        name="batch.sh"
    )
    run: Annotated[str, Meta(description="The run file, every value expanded, as JSON.")] = field(name="run.json")
    trainer_arguments: Annotated[str, Meta(description="The trainer's arguments, as a JSON list.")] = field(
        name="trainer-arguments.json"
    )
    engine: Annotated[str, Meta(description="The engine's configuration, as JSON.")] = field(name="engine.json")
    step: Annotated[str, Meta(description="The script that runs once per node.")] = field(name="step.sh")


class WouldSubmit(Struct, frozen=True, kw_only=True):
    """The effect that a submit would have."""

    script: Annotated[str, Meta(description="The batch script that Slurm would get.")]
    warnings: Annotated[list[str], Meta(description="What is not known, or may be wrong.")]


class PrintedChain(Chain, frozen=True, kw_only=True):
    """A chain that was submitted."""

    run: Annotated[str, Meta(description="The run's name.")]
    warnings: Annotated[list[str], Meta(description="What is not known, or may be wrong.")]
    further: Annotated[
        list[int],
        Meta(description="Chains behind it, where one array would have had more tasks than this Slurm takes."),
    ]


class ChangedValue(Struct, frozen=True, kw_only=True):
    """A value of the run file, before and after; null where it was not, or is no longer, set."""

    before: Annotated[Any, Meta(description="The published value.")] = field(name="from")
    after: Annotated[Any, Meta(description="The run file's value.")] = field(name="to")


class RevisedRun(Struct, frozen=True, kw_only=True):
    """The effect of a revise, or the planned effect."""

    revision: Annotated[str | None, Meta(description="Name of the newest revision; null in a dry run.")]
    changed: Annotated[
        dict[str, ChangedValue],
        Meta(description="What changed, by `table.key`; `layout`: the last checkpoint's and the one that loads it."),
    ]
    replaced: Annotated[
        dict[str, int | None],
        Meta(description="The new chain's job id by the old one's; null in a dry run."),
    ]
    dry_run: Annotated[bool, Meta(description="Whether nothing was changed.")]


class CancelledJobs(Struct, frozen=True, kw_only=True):
    """The effect of a cancel, or the planned effect."""

    ids: Annotated[list[str], Meta(description="The jobs that were cancelled, as squeue shows their ids.")]
    left: Annotated[list[str], Meta(description="The run's jobs that are left to their owners.")]
    unseen: Annotated[list[str], Meta(description="Others' chains that may be queued, where Slurm hides others' jobs.")]
    dry_run: Annotated[bool, Meta(description="Whether nothing was changed.")]


class RefilledRun(Struct, frozen=True, kw_only=True):
    """The effect of a refill on one run, or the reason for none."""

    run: Annotated[str, Meta(description="The run's name.")]
    output: Annotated[str, Meta(description="Absolute path of its output folder; empty where that is not known.")]
    state: Annotated[
        str,
        Meta(
            description="One of: `enough` is queued; `submitted` what was missing; `missing`, in a dry run; it "
            "`rests`, because a user stopped it or it is finished; `stuck`: a user has to check it."
        ),
    ]
    text: Annotated[str, Meta(description="The same in a line for people.")]
    submitted: Annotated[list[int], Meta(description="Job ids of the new arrays.")]
    missing: Annotated[int, Meta(description="How many arrays were missing.")]
    needs_somebody: Annotated[bool, Meta(description="Whether a person has to look.")]
