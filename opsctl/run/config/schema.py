"""The run file's tables as types. What is not here is refused by name when a run file is loaded."""

from __future__ import annotations

from typing import Any

import msgspec

from opsctl.slurm.cluster import BACKENDS

#: Who decides what queued tasks train: every member of `[run] group`, or only whose run it is.
PUBLISHERS = ("group", "owner")
#: How thoroughly nodes are tested before they are trained on.
PROBES = ("off", "quick", "full")
#: Names of the kinds; `programs.registry` has the kinds themselves. COMMAND is described by the table alone.
COMMAND = "command"
KINDS_OF_PROGRAMS = ("megatron-lm", "nemo", "torchtitan", "transformers", "lightning", "litgpt", COMMAND)
#: Names of groups in `[program] progress`.
PROGRESS_GROUPS = ("iteration", "total", "loss", "learning_rate", "grad_norm", "seconds")
#: Ways to start a program: one launcher of torch or accelerate on each node, or one process for each rank.
LAUNCHES = ("torchrun", "accelerate", "ranks")
#: How a training program is asked to save and leave: a signal, or HOOK; "none" for one that saves on no request.
HOOK = "hook"
STOPS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", HOOK, "none")
#: What to do with checkpoints that are older than the run: resume from the newest, or rename them and start fresh.
EXISTING = ("continue", "aside")


class RunTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[run]`."""

    name: str
    output: str = "output"  # relative to the run file's folder
    environment: str | None = None  # script sourced on every node before the trainer starts
    group: str | None = None  # Unix group that shares the run
    publish: str = "group"  # whose revisions the run's tasks take: a PUBLISHERS
    team: str = "the team"  # whom an ALERT line names
    rehearses: str | None = None  # the run file of which this is the small twin


class SlurmTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[slurm]: what sbatch is asked for. Names are Slurm's; durations are Slurm's."""

    nodes: int
    gpus_per_node: int  # also the number of ranks per node
    time: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    gpu_type: str | None = None
    cpus_per_task: int | None = None
    exclude: str | None = None
    nice: int | None = None
    spare: int = 0  # further nodes that each job gets, for those that turn out bad
    min_nodes: int = 0  # without spare nodes, a job continues on so many nodes or more; 0: only on all
    restarts: int = 100  # most restarts in one job after a failure; 0: only on spare nodes
    probe: str | None = None  # how nodes are tested before training, a PROBES; None: quick with spares, else off
    exit_margin: str = "10:00"  # the trainer saves and leaves this long before the time limit
    extra: tuple[str, ...] = ()  # further `#SBATCH` options, e.g. "--hint=nomultithread"

    @property
    def effort(self) -> str:
        """The effort of the node probe: one of PROBES."""
        return self.probe or ("quick" if self.spare else "off")


class ArrayTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[array]`."""

    tasks: str = "1-10%1"
    keep_queued: int = 2  # arrays that `opsctl refill` keeps behind the live one; 0: it leaves the run alone


class ProgramTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[program]: a training program other than our trainer. None: the default of its kind."""

    command: tuple[str, ...] = ()  # words; `{nodes}`, `{node_rank}` and other fields of programs.launchers.Place
    kind: str = COMMAND  # one of KINDS_OF_PROGRAMS
    folder: str | None = None  # where it is started; None: the run file's folder
    launch: str | None = None  # one of LAUNCHES
    stop: str | None = None  # how it is asked to save and leave, one of STOPS
    grace: str = "5:00"  # from that signal to the end of its processes, a Slurm duration
    checkpoints: str | None = None  # pattern of its checkpoints, relative to `folder`
    existing: str | None = None  # for checkpoints older than the run, one of EXISTING; None: refuse to start with them
    complete: tuple[str, ...] = ()  # names that a complete checkpoint folder has, of kind "command"
    progress: str | None = None  # regular expression of a line of progress, of kind "command"
    resume: tuple[str, ...] | None = None  # arguments to resume, with `{checkpoint}`
    steps: int | None = None  # length of the training in steps
    global_batch_size: int | None = None  # samples of a step, for samples per second
    batches_per_step: int = 1  # that its bar counts, for kinds with a bar of batches


class RetentionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[retention]: which checkpoints `opsctl checkpoints prune` leaves. 0 where a rule is not wanted."""

    last: int = 15  # the newest complete ones; never fewer than two
    every: int = 0  # iterations that this divides, for ever
    full_percent: float = 10.0  # of the training, after which there is a full one again, with optimizer states
    until_backed_up: int = 1000  # iterations that this divides, until they are backed up
    pinned: tuple[int, ...] = ()  # iterations, beside those of --save-iterations


class BackupTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[backup]: what is copied where. 0 where a rule is not wanted."""

    to: tuple[str, ...] = ()  # folders or URLs, each this run's own
    full_every: int = 10_000  # checkpoints that this divides, with optimizer states
    weights_every: int = 3_000  # checkpoints that this divides, without
    spikes: bool = True  # those of --save-iterations, whole
    pinned: tuple[int, ...] = ()  # these iterations, whole
    limit: str | None = None  # of all that is sent at once, such as "200MB" a second
    endpoint: str | None = None  # of an S3 server that is not Amazon's
    logs: bool = True
    tensorboard: bool = True
    carbon: bool = True
    report: bool = False  # `opsctl report` makes the page again from the others
    state: bool = True  # the run file and all records
    data: bool = False  # the data sets that the trainer's options name
    data_to: tuple[str, ...] = ()  # where these go, shared by several runs; none: to each of `to`


class WatchTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[watch]: what the checks hold the run against. None: what the run itself has shown so far."""

    must_run: bool = False  # waiting in the queue is not enough: nodes are set aside for this run
    wait_most: str | None = None  # longest wait in the queue, a Slurm duration
    silent_most: str | None = None  # longest time without a line in the log while it runs, a Slurm duration
    end_hung: bool = True  # the job ends a step that logs nothing and whose ranks stand still
    slower_percent: float = 5.0  # of the usual time of an iteration, for many in a row
    slower_node_percent: float = 3.0  # of what the other nodes compute for, all of the newest time
    tflops_least: float | None = None  # per GPU; None: 85 % of [expect] tflops
    skipped_percent: float = 5.0  # of the newest iterations that may be skipped or not a number
    checkpoint_most: str | None = None  # longest time between two checkpoints while it runs, a Slurm duration
    filesystems: tuple[str, ...] = ()  # folders whose space is watched beside the output folder's
    quota_command: tuple[str, ...] = ()  # words of a program that tells quotas, `{folder}` in them; only in a profile
    quota_pattern: str | None = None  # how to read what it prints; only in a profile
    full_percent: float = 90.0  # of bytes or inodes: a warning; half of what is left then is critical
    full_within: str = "7-0"  # full within this at the present growth, a Slurm duration
    purge_days: int | None = None  # the file system removes files that were not used for so long
    spare_nodes: int = 0  # healthy nodes that the partition should have beyond what the run needs
    clock_seconds: float = 30.0  # a node's clock may be off by so much


class AlertsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[alerts]: the recipients of alerts, and how often. Channels are apprise URLs without a secret, or references."""

    channels: tuple[str, ...] = ()
    escalate_to: tuple[str, ...] = ()  # also get a critical finding that was not acknowledged in time
    escalate_after: str = "1:00:00"  # a Slurm duration
    remind_after: str = "6:00:00"  # the first reminder; each next one after twice as long
    remind_most: str = "2-0"  # and never later than this after the one before
    per_hour: int = 12  # messages, at most; what is critical and new is always sent
    quiet: str | None = None  # "22:00-07:00", local time: what is not critical waits until then
    heartbeat: str | None = None  # reference to a URL that is asked for while all is well


#: How a checkpoint lies there: a folder on main, or a branch of its own.
HUB_CHECKPOINTS = ("folder", "branch")


class HubTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[hub]: what `opsctl hub sync` sends where. A kind without a repository is not sent."""

    repo: str | None = None  # OWNER/NAME, of every kind that has none of its own
    logs_repo: str | None = None
    tensorboard_repo: str | None = None
    carbon_repo: str | None = None
    report_repo: str | None = None
    checkpoints_repo: str | None = None
    private: bool = True  # of a repository that is made
    logs: tuple[str, ...] = ("*",)  # patterns of names under the folder; `*` matches `/` too
    tensorboard: tuple[str, ...] = ("*tfevents*",)
    carbon: tuple[str, ...] = ("*.csv",)
    report: tuple[str, ...] = ("*.html",)
    checkpoints: str | None = None  # how they lie there, one of HUB_CHECKPOINTS; None: none is sent
    checkpoints_every: int = 1  # iterations that this divides
    weights_only: bool = False  # without the optimizer's states
    give_up_after: str = "40:00"  # of one sync, a Slurm duration
    token: str | None = None  # reference to a token; None: the account's login, or HF_TOKEN


class CronTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[cron], of a profile: where the pseudo-cron has its jobs, and what it may use of the cluster."""

    folder: str | None = None  # None: this account's own
    group: str | None = None  # Unix group that shares it
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str = "30:00"  # of a tick and of each of its jobs, a Slurm duration
    nice: int = 10_000


class JobsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[jobs], of a profile: where long commands run as Slurm jobs. None asks for GPUs but what [evaluation] says."""

    partition: str | None = None
    internet_partition: str | None = None  # of what needs the internet; None: the cluster's nodes all have it
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str = "10:00:00"  # of each job; what is not done by then goes on in the next one
    nice: int = 100


class ClusterTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[cluster], of a profile: how its Slurm is asked."""

    backend: str = BACKENDS[0]  # one of BACKENDS


class NodesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[nodes], of a profile: the treatment of nodes with evidence against them."""

    auto: bool = True  # evidence excludes nodes by itself; else only people do
    most_excluded_percent: float = 10.0  # of a partition's nodes, by evidence; the worst one always
    shared: str | None = None  # folder where several runs have evidence and exclusions together; None: each its own
    group: str | None = None  # Unix group that shares that folder


class TriageTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[triage], of a profile: the rules of triage."""

    rules: str | None = None  # file with the site's own rules, which come before those that are shipped


class EnvironmentTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[environment]: the Python environment that `opsctl env build` makes for the run. Paths as in `[run]`."""

    folder: str = "environment"  # where each one that is built has a folder of its own
    python: str | None = None  # "3.11", or an interpreter's path; None: the Python that runs opsctl
    requirements: tuple[str, ...] = ()  # requirement or lock files
    index: str | None = None  # address of the package index; None: the tool's own
    find_links: tuple[str, ...] = ()  # folders with wheels
    modules: tuple[str, ...] = ()  # environment modules that are loaded first
    architectures: tuple[
        str, ...
    ] = ()  # GPUs that extensions are compiled for, as "8.0"; they are TORCH_CUDA_ARCH_LIST
    extensions: tuple[str, ...] = ()  # compiled ahead: DeepSpeed's ops by name, or "module:function" that compiles
    imports: tuple[str, ...] = ()  # modules that have to be importable before the environment is used


class EvaluationTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[evaluation]: which checkpoints `opsctl evaluate` runs lm-eval on, and how. Paths as in `[run]`."""

    every: int = 10_000  # checkpoints that this divides; 0: only those that are named by hand
    tasks: tuple[str, ...] = ()  # by lm-eval's names
    python: str | None = None  # interpreter of the environment that has lm-eval; None: the Python that runs opsctl
    include: tuple[str, ...] = ()  # folders with tasks of one's own
    few_shot: int | None = None  # answered questions before each question; None: as many as each task says
    limit: int = 0  # questions of each task; 0: all
    batch_size: str = "1"  # questions at once; "auto": as many as fit
    device: str | None = None  # "cuda", "cpu"; None: lm-eval's own choice
    dtype: str | None = None  # of the exported weights; None: as saved
    model_args: tuple[str, ...] = ()  # further "name=value" of lm-eval's model, e.g. "parallelize=True"
    scratch: str | None = None  # where the model is exported to meanwhile; None: under the run's own folder
    gpus: int = 0  # of the node that each evaluation gets
    partition: str | None = None  # of its job, as the rest; None: as the profile's [jobs] says
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str | None = None


class ExpectTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[expect]: the plan's assumptions until the training log has measured values."""

    seconds_per_iteration: float | None = None
    evaluation_seconds: float | None = None
    save_seconds: float | None = None
    tflops: float | None = None  # hardware TFLOP/s per GPU


class GpuTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[gpu]: the figures for `plan --search`. None: those known for the GPU that `[slurm]` requests."""

    memory_gb: float | None = None  # of each GPU, 10^9 bytes
    peak_tflops: float | None = None  # dense TFLOP/s of each, in the run's precision
    within_node_gbs: float | None = None  # GB/s that each GPU has to those of its node
    between_nodes_gbs: float | None = None  # GB/s that each node has to others


class CarbonTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[carbon]: whether energy is measured, where its electricity comes from, what to assume where nothing is known."""

    measure: bool = False  # a tracker on each node, into the run's codecarbon folder
    country: str | None = None  # ISO 3166, three letters
    region: str | None = None  # as codecarbon names it
    intensity_g_per_kwh: float | None = None  # CO2e of a kWh, in place of the country's
    pue: float = 1.0  # electricity of the site for each kWh of its machines
    gpu_power_w: float | None = None  # of a GPU with its share of the node, where nothing is measured
    gpu_power_off_percent: float = 25.0  # by how much that may be more or less: the ends of what `plan` tells


class Reckoning(ExpectTable, frozen=True):
    """`[expect]` with what the log has measured: medians of the newest saves and evaluations, and the longest."""

    evaluations: int = 0  # 0: as the run file expects it
    longest_evaluation_seconds: float | None = None
    saves: int = 0
    longest_save_seconds: float | None = None


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole run file.

    `trainer`, `data` and `checkpoints` hold the trainer's options with `_` for `-`; which option belongs in which table
    is `trainer.recipe.options.Option.table`. `watch`, `alerts` and `hub` hold what is written there: a profile's
    values, which are not this file's to publish, come under them when they are used (`config.profile`).
    """

    run: RunTable
    slurm: SlurmTable
    array: ArrayTable = ArrayTable()
    trainer: dict[str, Any] = {}
    data: dict[str, Any] = {}
    checkpoints: dict[str, Any] = {}
    retention: RetentionTable | None = None  # None: nothing says what may go
    program: ProgramTable | None = None  # None: our trainer
    environment: EnvironmentTable | None = None  # None: `opsctl env build` has nothing to go by
    backup: BackupTable | None = None  # None: nothing says what is copied where
    evaluation: EvaluationTable | None = None  # None: nothing is evaluated by lm-eval
    expect: ExpectTable = ExpectTable()
    gpu: GpuTable = GpuTable()
    carbon: CarbonTable = CarbonTable()
    watch: dict[str, Any] = {}
    alerts: dict[str, Any] = {}
    hub: dict[str, Any] = {}
    env: dict[str, str] = {}
