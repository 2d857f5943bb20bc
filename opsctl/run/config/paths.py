"""Where a run keeps its things, under its output folder. The names are contracts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.run.config.file_kinds import CHECKPOINTS, FOLDERS
from opsctl.slurm.cluster import CLUSTER_FILE
from trainer.formats.attempt.attempt_records import STOP_REQUEST
from trainer.formats.attempt.lease import LEASE_FILE


@dataclass(frozen=True)
class RunPaths:
    """The folders and files of one run."""

    output: Path  # absolute

    def folder_of(self, kind: str) -> Path:
        """Where the files of a kind are, one of `file_kinds.KINDS`."""
        return self.output / FOLDERS[kind]

    @property
    def checkpoints(self) -> Path:
        """The trainer's --save and --load: a folder for each checkpoint, and what names the latest."""
        return self.folder_of(CHECKPOINTS)

    @property
    def rollbacks(self) -> Path:
        """A line for each time that somebody let another checkpoint be the latest; only added to."""
        return self.checkpoints / "rollbacks.jsonl"

    @property
    def prunes(self) -> Path:
        """A line for each checkpoint that was pruned; only added to."""
        return self.checkpoints / "prunes.jsonl"

    @property
    def restored(self) -> Path:
        """The record of the restore that made this folder."""
        return self.state / "restored.json"

    @property
    def set_aside(self) -> Path:
        """A folder for each rollback, with what lies after the point that it went back to."""
        return self.output / "set-aside"

    @property
    def logs(self) -> Path:
        """What is written as the training goes on, by the ranks, the jobs and the watch."""
        return self.folder_of("logs")

    @property
    def main_log(self) -> Path:
        """The training log: the trainer's lines and our own, of all attempts one after the other."""
        return self.logs / "main_log.txt"

    @property
    def job_outputs(self) -> Path:
        """Slurm's own output, one file per job."""
        return self.logs / "slurm"

    @property
    def tensorboard(self) -> Path:
        """The trainer's --tensorboard-dir; all attempts add to it."""
        return self.folder_of("tensorboard")

    @property
    def codecarbon(self) -> Path:
        """The trainer's --codecarbon-dir: a file for each attempt and node; there only where energy is measured."""
        return self.folder_of("carbon")

    @property
    def page(self) -> Path:
        """The run's page, as `opsctl report` publishes it."""
        return self.folder_of("report") / "index.html"

    @property
    def kill_switch(self) -> Path:
        """The kill switch. Its presence stops the training."""
        return self.output / "kill-switch"

    @property
    def kill_switch_reserve(self) -> Path:
        """A file kept ready to become the kill switch where a full disk takes no new one."""
        return self.state / "kill-switch.reserve"

    @property
    def kill_switch_log(self) -> Path:
        """A line for each time that somebody deactivated the kill switch; only added to."""
        return self.state / "kill-switch.jsonl"

    @property
    def state(self) -> Path:
        """What opsctl itself has to remember of the run."""
        return self.output / ".opsctl"

    @property
    def lock(self) -> Path:
        """Held while the run is submitted, revised or cancelled, one at a time."""
        return self.state / "lock"

    @property
    def lease(self) -> Path:
        """Who may train into this folder: a line for each taking and each end of one; its mtime is the heartbeat."""
        return self.state / LEASE_FILE

    @property
    def run_id(self) -> Path:
        """A random id that every job of this run carries in its Slurm comment, so that a renamed job is still ours."""
        return self.state / "run-id"

    @property
    def identity(self) -> Path:
        """Which folder that id was given to, so that a copy is not taken for the run."""
        return self.state / "identity.json"

    @property
    def cluster(self) -> Path:
        """The cluster of the last submission; absent before the first."""
        return self.state / CLUSTER_FILE

    @property
    def revisions(self) -> Path:
        """A folder for each published revision, NUMBER-DIGEST; the newest is what a task starts with."""
        return self.state / "revisions"

    @property
    def chains(self) -> Path:
        """A line for each chain that Slurm took, oldest first; only added to."""
        return self.state / "chains.jsonl"

    @property
    def rehearsals(self) -> Path:
        """A line for each rehearsal of this run that came to its end; only added to."""
        return self.state / "rehearsals.jsonl"

    @property
    def cancels(self) -> Path:
        """A line for each time that somebody cancelled jobs of the run; only added to."""
        return self.state / "cancels.jsonl"

    @property
    def attempts(self) -> Path:
        """A line for each attempt opened and each closed; only added to."""
        return self.state / "attempts.jsonl"

    @property
    def node_evidence(self) -> Path:
        """A line for each thing that was seen to speak against a node; only added to."""
        return self.state / "node-evidence.jsonl"

    @property
    def queue_excludes(self) -> Path:
        """Which nodes of the exclusion list each chain in the queue is kept off by now."""
        return self.state / "queue-excludes.json"

    @property
    def carbon_seen(self) -> Path:
        """What the last report of the run's energy found, for looks at more records than they read."""
        return self.state / "carbon.json"

    @property
    def requests(self) -> Path:
        """A file for each thing that somebody of the group asks the owner's jobs to do."""
        return self.state / "requests"

    @property
    def audit(self) -> Path:
        """A line for each request that was carried out or refused: who, when, why, what came of it; only added to."""
        return self.state / "audit.jsonl"

    @property
    def alerts(self) -> Path:
        """What the desk remembers of findings: since when, told whom, acknowledged by whom."""
        return self.state / "alerts.json"

    @property
    def alert_log(self) -> Path:
        """A line for each message made, sent, or not sent; only added to. What is not sent yet follows from it."""
        return self.state / "alerts.jsonl"

    @property
    def alerts_lock(self) -> Path:
        """Held for the moment in which what is remembered of findings changes."""
        return self.state / "alerts.lock"

    @property
    def alert_reserve(self) -> Path:
        """Disk kept for what the two files above cannot take."""
        return self.state / "alerts.reserve"

    @property
    def alert_senders(self) -> Path:
        """A file for each alert channel, whose lock whoever sends on it holds."""
        return self.state / "alerts.sending"

    @property
    def reading(self) -> Path:
        """A file for each checkpoint that somebody reads for long, with a lock that dies with the reader."""
        return self.state / "reading"

    @property
    def backups(self) -> Path:
        """A line for each thing that is backed up somewhere, and what became of it; only added to."""
        return self.state / "backups.jsonl"

    @property
    def backups_read(self) -> Path:
        """A line for each sample of what is backed up that was read again, and how far that has come; only added to."""
        return self.state / "backups-read.jsonl"

    @property
    def data_sums(self) -> Path:
        """What was in the files of data sets when a backup last read them whole."""
        return self.state / "data-sums.json"

    @property
    def backups_lock(self) -> Path:
        """Held for the moment in which that file changes."""
        return self.state / "backups.lock"

    @property
    def space(self) -> Path:
        """A line for each look at the file systems; only added to."""
        return self.state / "space.jsonl"

    @property
    def walk(self) -> Path:
        """How far the walk through the output folder has come, and what the last whole one found."""
        return self.state / "walk.json"

    @property
    def hub_ledger(self) -> Path:
        """A line for each file that was sent to a hub, or is there no more; what is not in it is looked for there."""
        return self.state / "hub.jsonl"

    @property
    def hub_uploaders(self) -> Path:
        """Who sends to a hub now, a lock and a heartbeat for files and for checkpoints."""
        return self.state / "hub.sending"

    @property
    def evaluations(self) -> Path:
        """A line for each time that a checkpoint was to be evaluated, and what became of it; only added to."""
        return self.state / "evaluations.jsonl"

    @property
    def evaluating(self) -> Path:
        """A file for each checkpoint that was ever evaluated, whose lock whoever does so holds."""
        return self.state / "evaluating"

    @property
    def exported(self) -> Path:
        """A folder for each checkpoint that is being evaluated, as transformers has it; removed afterwards."""
        return self.output / "exported"

    def evaluation(self, iteration: int) -> Path:
        """What came of the evaluation of one checkpoint: a file for each task, and all of it in one."""
        return self.logs / "evaluation" / f"global_step{iteration}"

    def attempt_folder(self, job_id: int) -> Path:
        """What the ranks of one attempt leave: rank maps, first failures, elastic error files, node outputs."""
        return self.logs / "attempts" / str(job_id)

    def stop_request(self, job_id: int) -> Path:
        """Its presence asks this job's trainer to save and leave."""
        return self.attempt_folder(job_id) / STOP_REQUEST
