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
    changed: Annotated[bool, Meta(description="True if another checkpoint was the latest before.")]
    dry_run: Annotated[bool, Meta(description="True with `--dry-run`: nothing was changed.")]


class PrunedRun(Struct, frozen=True, kw_only=True):
    """The checkpoints of one run that a prune removed, or with `--dry-run` would remove."""

    run: Annotated[str, Meta(description="The run's name.")]
    dry_run: Annotated[bool, Meta(description="True with `--dry-run`: nothing was changed.")]
    kept: Annotated[dict[str, list[str]], Meta(description="Iteration, as text, to every reason why it stays.")]
    pruned: Annotated[list[int], Meta(description="Iterations of the removed checkpoints.")]
    problems: Annotated[list[str], Meta(description="Problems, each with its reason; with one the command exits 1.")]


class RolledBackRun(Struct, frozen=True, kw_only=True):
    """The effect of a rollback or its undo; with `--dry-run` the planned effect."""

    number: Annotated[int | None, Meta(description="Number of the rollback; null if nothing was to do.")]
    before: Annotated[int | None, Meta(description="Iteration of the latest before; null if unknown.")] = field(
        name="from"
    )
    to: Annotated[int, Meta(description="Iteration from which the next task resumes.")]
    checkpoints: Annotated[list[int], Meta(description="Iterations that were moved.")]
    events: Annotated[list[str], Meta(description="TensorBoard's files that were moved, by name.")]
    folder: Annotated[str | None, Meta(description="Folder with the files that were set aside.")]
    dry_run: Annotated[bool, Meta(description="True with `--dry-run`: nothing was changed.")]


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
    warnings: Annotated[list[str], Meta(description="Missing or doubtful facts.")]


class PrintedChain(Chain, frozen=True, kw_only=True):
    """A chain that was submitted."""

    run: Annotated[str, Meta(description="The run's name.")]
    warnings: Annotated[list[str], Meta(description="Missing or doubtful facts.")]
    further: Annotated[
        list[int],
        Meta(description="Chains behind it, if one array would have more tasks than Slurm allows."),
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
        Meta(description="Changes by `table.key`; `layout` has the layout of the last checkpoint and the new one."),
    ]
    replaced: Annotated[
        dict[str, int | None],
        Meta(description="The new chain's job id by the old one's; null in a dry run."),
    ]
    dry_run: Annotated[bool, Meta(description="True if nothing was changed.")]


class CancelledJobs(Struct, frozen=True, kw_only=True):
    """The effect of a cancel, or the planned effect."""

    ids: Annotated[list[str], Meta(description="The jobs that were cancelled, as squeue shows their ids.")]
    left: Annotated[list[str], Meta(description="The run's jobs that are left to their owners.")]
    unseen: Annotated[list[str], Meta(description="Other users' chains that may be queued, if Slurm hides their jobs.")]
    dry_run: Annotated[bool, Meta(description="True if nothing was changed.")]


class RefilledRun(Struct, frozen=True, kw_only=True):
    """The effect of a refill on one run, or the reason for none."""

    run: Annotated[str, Meta(description="The run's name.")]
    output: Annotated[str, Meta(description="Absolute path of its output folder; empty if unknown.")]
    state: Annotated[
        str,
        Meta(
            description="`enough` chains are queued; `submitted`: the missing ones; `missing`: with "
            "`--dry-run`; `rests`: stopped by a user or finished; `stuck`: a user must act."
        ),
    ]
    text: Annotated[str, Meta(description="The same in a line for people.")]
    submitted: Annotated[list[int], Meta(description="Job ids of the new arrays.")]
    missing: Annotated[int, Meta(description="How many arrays were missing.")]
    needs_somebody: Annotated[bool, Meta(description="True if a user must act.")]
