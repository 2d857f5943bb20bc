"""What every command prints with `--json`: one shape for each top key. Loaded by the page's generator and tests only.

A shape is a msgspec struct, a list of such, or text. In a struct with `omit_defaults` a field that is None by default
is left out where there is nothing to say; every other field is always printed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from opsctl.diagnosis.carbon.report import CarbonReport
from opsctl.diagnosis.goodput.report import GoodputReport
from opsctl.diagnosis.hangs.summary import PrintedStacks
from opsctl.diagnosis.nodes.exclusion_list import ListedExclusion
from opsctl.diagnosis.nodes.listing import SeenNode
from opsctl.diagnosis.nodes.site_report import DraftedReport
from opsctl.diagnosis.probe.report import ProbeReport
from opsctl.diagnosis.triage.report import Triage
from opsctl.jobs.background.listing import PrintedErrand
from opsctl.jobs.control.json_output import (
    CancelledJobs,
    PrintedChain,
    PrunedRun,
    RefilledRun,
    RenderedFiles,
    RepointedCheckpoints,
    RevisedRun,
    RolledBackRun,
    WouldSubmit,
)
from opsctl.jobs.evaluation.jobs import AskedEvaluation
from opsctl.jobs.evaluation.results import EvaluatedCheckpoint
from opsctl.jobs.scheduler.overview import PrintedCron, PrintedCronJob
from opsctl.local.cluster.status import ClusterStatus
from opsctl.monitoring.alerts.listing import PrintedAlerts, PrintedSending
from opsctl.monitoring.all_runs import PrintedRun
from opsctl.monitoring.disk.json_output import PrintedDisk, PrintedPurge, PrintedTouch
from opsctl.monitoring.finding import PrintedFinding
from opsctl.run.attempts.table import PrintedAttempt
from opsctl.run.checkpoints.contents import ShownCheckpoint, VerifiedCheckpoint
from opsctl.run.checkpoints.listing import ListedCheckpoint
from opsctl.run.environments.checking import CheckedEnvironment
from opsctl.run.environments.json_output import BuiltEnvironment
from opsctl.run.permissions.report import PrintedPerms
from opsctl.run.planning.plan import NumbersPlan, RunPlan
from opsctl.run.planning.search_values import LayoutSearch
from opsctl.run.state.kill_switch import PrintedKillSwitch
from opsctl.run.state.requests import Action, Audited, PrintedRequest
from opsctl.transfer.backups.json_output import (
    BackedUpRun,
    PrintedBackup,
    RestoredCheckpoint,
    RestoredData,
    RestoredRun,
    VerifiedBackups,
)
from opsctl.transfer.hub.json_output import CheckedHub, ComparedHub, SyncedRun
from opsctl.ui.doctor.check import PrintedCheck
from opsctl.ui.status.all_runs import PrintedRow
from opsctl.ui.status.hub_status import FarStatus
from opsctl.ui.status.json_output import Status
from opsctl.ui.status.on_call import HandOver
from opsctl.ui.status.queue import PrintedJob
from trainer.formats.attempt.environment import Environment
from trainer.formats.attempt.kernel_times import KernelTimes
from trainer.formats.attempt.kernels import KernelCache
from trainer.formats.checkpoint.exchanged import ConvertedCheckpoint, ExportedModel, GeneratedText, ImportedModel
from trainer.formats.data.data_indices import IndexedData
from trainer.formats.data.data_inspected import InspectedSet, ReadSamples, RealisedMixture
from trainer.formats.data.data_mix import MixedData
from trainer.formats.data.data_notes import PreparedData


class Printed(NamedTuple):
    """One thing that a command prints."""

    command: str  # the words after `opsctl`
    key: str  # the top key, beside schema_version
    shape: Any
    when: str = ""  # what makes the command print this one, where it prints several


def name_in_table(command: str) -> str:
    """How `PRINTED` calls a command: every single check of `watch` alike."""
    return "watch CHECK" if command.startswith("watch ") and command != "watch all" else command


PRINTED = (
    Printed("plan", "plan", RunPlan, "from a run file"),
    Printed("plan", "plan", NumbersPlan, "from numbers"),
    Printed("plan", "search", LayoutSearch, "with --search"),
    Printed("submit", "submitted", PrintedChain),
    Printed("submit", "would_submit", WouldSubmit, "with `--dry-run`"),
    Printed("render", "files", RenderedFiles),
    Printed("render", "difference", str, "with `--diff`"),
    Printed("revise", "revised", RevisedRun),
    Printed("cancel", "cancelled", CancelledJobs),
    Printed("refill", "refilled", list[RefilledRun]),
    Printed("status", "status", Status),
    Printed("status", "runs", list[PrintedRow], "with `--all`"),
    Printed("status", "far_status", FarStatus, "with `--hub`"),
    Printed("on-call", "hand_overs", list[HandOver]),
    Printed("queue", "jobs", list[PrintedJob]),
    *(
        printed
        for check in ("all", "CHECK")
        for printed in (
            Printed(f"watch {check}", "findings", list[PrintedFinding]),
            Printed(f"watch {check}", "runs", list[PrintedRun], "with `--all-runs`"),
        )
    ),
    Printed("nodes show", "nodes", list[SeenNode]),
    Printed("nodes report", "report", DraftedReport),
    Printed("exclude list", "exclusions", list[ListedExclusion]),
    Printed("attempts", "attempts", list[PrintedAttempt]),
    Printed("triage", "triage", Triage),
    Printed("triage", "stacks", PrintedStacks, "with `--stacks`"),
    Printed("attempts", "goodput", GoodputReport, "with `--report`"),
    Printed("carbon report", "carbon", CarbonReport),
    Printed("checkpoints list", "checkpoints", list[ListedCheckpoint]),
    Printed("checkpoints show", "checkpoint", ShownCheckpoint),
    Printed("checkpoints verify", "verified", list[VerifiedCheckpoint]),
    Printed("checkpoints repoint", "repointed", RepointedCheckpoints),
    Printed("checkpoints prune", "pruned", list[PrunedRun]),
    Printed("checkpoints backup", "backups", list[BackedUpRun]),
    Printed("checkpoints restore", "restored", RestoredCheckpoint),
    Printed("backup", "backups", list[BackedUpRun]),
    Printed("backup list", "backups", list[PrintedBackup]),
    Printed("backup verify", "verified", list[VerifiedBackups]),
    Printed("restore", "restored", RestoredRun),
    Printed("restore", "restored_data", RestoredData, "with `--data`"),
    Printed("checkpoints rollback", "rolled_back", RolledBackRun),
    *(
        Printed(f"kill-switch {verb}", "kill_switch", PrintedKillSwitch)
        for verb in ("arm", "trigger", "deactivate", "status")
    ),
    *(Printed(f"cron {verb}", "cron", PrintedCron) for verb in ("start", "stop", "status")),
    Printed("cron list", "jobs", list[PrintedCronJob]),
    *(Printed(f"request {action}", "request", PrintedRequest) for action in Action),
    Printed("request list", "requests", list[PrintedRequest]),
    Printed("request carry-out", "carried_out", list[Audited]),
    Printed("request carry-out", "waiting", list[PrintedRequest], "with `--dry-run`"),
    Printed("hub check", "checked", CheckedHub),
    Printed("hub sync", "synced", list[SyncedRun]),
    Printed("hub status", "hub", ComparedHub),
    *(Printed(f"alerts {verb}", "alerts", PrintedAlerts) for verb in ("list", "send", "ack", "silence", "unsilence")),
    Printed("alerts test", "sendings", list[PrintedSending]),
    Printed("data prepare", "data", PreparedData),
    Printed("data index", "indexed", IndexedData),
    Printed("data mix", "mixed", MixedData),
    Printed("data inspect", "data_sets", list[InspectedSet], "of data sets"),
    Printed("data inspect", "samples", ReadSamples, "with `--samples` or `--iterations`"),
    Printed("data inspect", "mixture", RealisedMixture, "with `--mixture`"),
    Printed("checkpoints convert", "converted", ConvertedCheckpoint),
    Printed("export hf", "exported", list[ExportedModel]),
    Printed("evaluate", "evaluated", list[EvaluatedCheckpoint]),
    Printed("evaluate", "asked", list[AskedEvaluation], "with `--job`"),
    Printed("generate", "generated", list[GeneratedText]),
    Printed("import hf", "imported", ImportedModel),
    Printed("jobs list", "errands", list[PrintedErrand]),
    *(
        Printed(long, "errand", PrintedErrand, "with `--job`")
        for long in (
            *(
                "checkpoints prune",
                "checkpoints convert",
                "data prepare",
                "data index",
                "data mix",
                "export hf",
                "import hf",
            ),
            *("env build", "generate", "hub sync"),
            *("checkpoints backup", "checkpoints restore", "backup", "backup verify", "restore"),
        )
    ),
    Printed("env build", "built", BuiltEnvironment),
    Printed("env freeze", "environment", Environment),
    Printed("env check", "checked", CheckedEnvironment),
    *(Printed(f"kernels {verb}", "kernels", KernelCache) for verb in ("build", "list", "check")),
    Printed("kernels measure", "times", KernelTimes),
    *(Printed(f"disk {verb}", "errand", PrintedErrand, "with `--job`") for verb in ("use", "purge", "touch")),
    Printed("disk use", "disk", list[PrintedDisk]),
    Printed("disk purge", "purge", list[PrintedPurge]),
    Printed("disk touch", "touched", list[PrintedTouch]),
    *(Printed(f"perms {verb}", "errand", PrintedErrand, "with `--job`") for verb in ("check", "fix")),
    *(Printed(f"perms {verb}", "perms", list[PrintedPerms]) for verb in ("check", "fix")),
    Printed("doctor", "checks", list[PrintedCheck]),
    Printed("probe", "probe", ProbeReport),
    Printed("local-cluster status", "clusters", list[ClusterStatus]),
)
