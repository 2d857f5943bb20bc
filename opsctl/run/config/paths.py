"""The paths of a run under its output folder. The names are contracts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.run.config.file_kinds import CHECKPOINTS, FOLDERS
from opsctl.slurm.cluster import CLUSTER_FILE
from trainer.formats.attempt.attempt_records import STOP_REQUEST
from trainer.formats.attempt.lease import LEASE_FILE


class Place:
    """A file or folder at a fixed place below the folder that is the `root` attribute of its owner."""

    def __init__(self, name: str, root: str = "output") -> None:
        self.name, self.root = name, root

    def __get__(self, owner: Any, kind: object = None) -> Path:
        """Return its path."""
        return Path(getattr(owner, self.root), self.name)


@dataclass(frozen=True)
class RunPaths:
    """The folders and files of one run."""

    output: Path  # absolute

    def folder_of(self, kind: str) -> Path:
        """Return the folder of a kind of files, one of `file_kinds.KINDS`."""
        return self.output / FOLDERS[kind]

    #: The trainer's --save and --load: a folder for each checkpoint, and what names the latest.
    checkpoints = Place(FOLDERS[CHECKPOINTS])
    #: A line for each change of the latest checkpoint by a user; append-only.
    rollbacks = Place("checkpoints/rollbacks.jsonl")
    #: A line for each checkpoint that was pruned; only added to.
    prunes = Place("checkpoints/prunes.jsonl")
    #: The record of the restore that made this folder.
    restored = Place(".opsctl/restored.json")
    #: A folder for each rollback, with what lies after the point that it went back to.
    set_aside = Place("set-aside")
    #: What is written as the training goes on, by the ranks, the jobs and the watch.
    logs = Place(FOLDERS["logs"])
    #: The training log: the trainer's lines and our own, of all attempts one after the other.
    main_log = Place("logs/main_log.txt")
    #: Slurm's own output, one file per job.
    job_outputs = Place("logs/slurm")
    #: The trainer's --tensorboard-dir; all attempts add to it.
    tensorboard = Place(FOLDERS["tensorboard"])
    #: The trainer's --codecarbon-dir: a file for each attempt and node; there only where energy is measured.
    codecarbon = Place(FOLDERS["carbon"])
    #: The run's page, as `opsctl report` publishes it.
    page = Place(FOLDERS["report"] + "/index.html")
    #: The kill switch. Its presence stops the training.
    kill_switch = Place("kill-switch")
    #: A file kept ready to become the kill switch where a full disk takes no new one.
    kill_switch_reserve = Place(".opsctl/kill-switch.reserve")
    #: A line for each deactivation of the kill switch; append-only.
    kill_switch_log = Place(".opsctl/kill-switch.jsonl")
    #: What opsctl itself has to remember of the run.
    state = Place(".opsctl")
    #: Held while the run is submitted, revised or cancelled, one at a time.
    lock = Place(".opsctl/lock")
    #: The patterns of checkpoints with which another training program was started.
    started_patterns = Place(".opsctl/started-patterns.json")
    #: Who may train into this folder: a line for each taking and each end of one; its mtime is the heartbeat.
    lease = Place(f".opsctl/{LEASE_FILE}")
    #: A random id that every job of this run carries in its Slurm comment, so that a renamed job is still ours.
    run_id = Place(".opsctl/run-id")
    #: Which folder that id was given to, so that a copy is not taken for the run.
    identity = Place(".opsctl/identity.json")
    #: The cluster of the last submission; absent before the first.
    cluster = Place(f".opsctl/{CLUSTER_FILE}")
    #: A folder for each published revision, NUMBER-DIGEST; the newest is what a task starts with.
    revisions = Place(".opsctl/revisions")
    #: A line for each chain that Slurm took, oldest first; only added to.
    chains = Place(".opsctl/chains.jsonl")
    #: The submission whose outcome is not on record yet.
    submitting = Place(".opsctl/submitting.json")
    #: A line for each cancel of the run's jobs; append-only.
    cancels = Place(".opsctl/cancels.jsonl")
    #: A line for each attempt opened and each closed; only added to.
    attempts = Place(".opsctl/attempts.jsonl")
    #: A line for each thing that was seen to speak against a node; only added to.
    node_evidence = Place(".opsctl/node-evidence.jsonl")
    #: Which nodes of the exclusion list each chain in the queue is kept off by now.
    queue_excludes = Place(".opsctl/queue-excludes.json")
    #: What the last report of the run's energy found, for looks at more records than they read.
    carbon_seen = Place(".opsctl/carbon.json")
    #: A file for each request of a group member to the owner's jobs.
    requests = Place(".opsctl/requests")
    #: A line for each request that was carried out or refused: who, when, why, result; append-only.
    audit = Place(".opsctl/audit.jsonl")
    #: What the desk remembers of findings: since when, told whom, acknowledged by whom.
    alerts = Place(".opsctl/alerts.json")
    #: A line for each message made, sent, or not sent; only added to. What is not sent yet follows from it.
    alert_log = Place(".opsctl/alerts.jsonl")
    #: Held for the moment in which what is remembered of findings changes.
    alerts_lock = Place(".opsctl/alerts.lock")
    #: Disk kept for what the two files above cannot take.
    alert_reserve = Place(".opsctl/alerts.reserve")
    #: A file for each alert channel. The sending process holds its lock.
    alert_senders = Place(".opsctl/alerts.sending")
    #: A file for each checkpoint that a process reads for long, with a lock that ends with the reader.
    reading = Place(".opsctl/reading")
    #: A line for each thing that is backed up somewhere, and what became of it; only added to.
    backups = Place(".opsctl/backups.jsonl")
    #: What was in the files of data sets when a backup last read them whole.
    data_sums = Place(".opsctl/data-sums.json")
    #: Held for the moment in which that file changes.
    backups_lock = Place(".opsctl/backups.lock")
    #: A line for each look at the file systems; only added to.
    space = Place(".opsctl/space.jsonl")
    #: How far the walk through the output folder has come, and what the last whole one found.
    walk = Place(".opsctl/walk.json")
    #: A line for each file that was sent to a hub, or is there no more; what is not in it is looked for there.
    hub_ledger = Place(".opsctl/hub.jsonl")
    #: Who sends to a hub now, a lock and a heartbeat for files and for checkpoints.
    hub_uploaders = Place(".opsctl/hub.sending")
    #: A line for each time that a checkpoint was to be evaluated, and what became of it; only added to.
    evaluations = Place(".opsctl/evaluations.jsonl")
    #: A file for each checkpoint that was ever evaluated. The evaluating process holds its lock.
    evaluating = Place(".opsctl/evaluating")
    #: A folder for each checkpoint that is being evaluated, as transformers has it; removed afterwards.
    exported = Place("exported")

    def evaluation(self, iteration: int) -> Path:
        """Return the folder of one checkpoint's evaluation: a file for each task, and one with all of them."""
        return self.logs / "evaluation" / f"global_step{iteration}"

    def attempt_folder(self, job_id: int) -> Path:
        """Return the folder of one attempt: rank maps, first failures, elastic error files, node outputs."""
        return self.logs / "attempts" / str(job_id)

    def stop_request(self, job_id: int) -> Path:
        """Its presence asks this job's trainer to save and leave."""
        return self.attempt_folder(job_id) / STOP_REQUEST
