"""Faults in trainings of torch alone: `srun torchrun train.py FAULT` in a job of its own, its log as Slurm keeps it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.faults.fault import Fault, Stage, Truth, wait_for_words

_TORCHRUN = f"{Path(sys.executable).parent}/torchrun"
_HEAD = "export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo\n"


def torchrun(
    words: str,
    nodes: int = 2,
    ranks: int | str = 1,
    around: str = "",
    port: str = "$((20000 + SLURM_JOB_ID % 9000))",
    host: str = "127.0.0.1",
    meets_within_s: int = 900,
    first: str = "",
) -> str:
    """The body of a job: one torchrun a node. around: a command that runs it; first: lines before."""
    launcher = (
        f"{around} {_TORCHRUN} --nnodes {nodes} --nproc-per-node {ranks} --rdzv-backend static "
        f"--rdzv-conf timeout={meets_within_s} --node-rank \\$SLURM_PROCID --master-addr {host} --master-port {port} "
        f"train.py {words}"
    )
    return f'{_HEAD}{first}srun --kill-on-bad-exit=1 --label bash -c "{launcher}"\n'


def plain(
    name: str,
    truth: Truth,
    words: str,
    *,
    options: tuple[str, ...] = (),
    do: Callable[[Stage], None] = lambda _stage: None,
    before: Callable[[Stage], None] = lambda _stage: None,
    **more: Any,
) -> Fault:
    nodes, ranks = int(str(more.get("nodes", 2))), str(more.get("ranks", 1))
    return Fault(
        name,
        truth,
        do,
        script=torchrun(words, **more),
        options=options,
        nodes=nodes,
        before=before,
        ranks_per_node=int(ranks) if ranks.isdecimal() else 1,
    )


def code(about: str, rank: int | None = None) -> Truth:
    return Truth("user-code", about, True, rank, "" if rank is None else "of rank")


def data(about: str, rank: int | None = None) -> Truth:
    return Truth("data", about, True, rank, "" if rank is None else "of rank")


def broken_pt(stage: Stage) -> None:
    """A file that torch.load takes for a zip archive, cut short."""
    import torch

    torch.save({"weights": torch.ones(4000)}, stage.folder / "broken.pt")
    whole = (stage.folder / "broken.pt").read_bytes()
    (stage.folder / "broken.pt").write_bytes(whole[: len(whole) // 2])


def broken_safetensors(stage: Stage) -> None:
    (stage.folder / "broken.safetensors").write_bytes(b"\xff" * 64)


def broken_jsonl(stage: Stage) -> None:
    (stage.folder / "shard-0007.jsonl").write_text('{"text": "a"}\n' * 3 + '{"text": "cut he\n')


def cancel(stage: Stage) -> None:
    wait_for_words(stage, "step     40")
    stage.cluster.run("scancel", str(stage.job_id))


def preempt(stage: Stage) -> None:
    wait_for_words(stage, "step     40")
    urgent = stage.cluster.sbatch("sleep 5", "--partition=urgent", "--nodes=4", "--exclusive", "--time=1")
    stage.wait_until_over()
    stage.cluster.wait_for_state(urgent, "COMPLETED")


def kill_node(stage: Stage) -> None:
    wait_for_words(stage, "step     40")
    stage.culprit = stage.nodes[-1]
    stage.cluster.kill_node(stage.culprit)


def requeue(stage: Stage) -> None:
    """A user has Slurm put the job back into the queue, and thinks better of it."""
    wait_for_words(stage, "step     40")
    stage.cluster.run("scontrol", "requeuehold", str(stage.job_id))
    wait_for_words(stage, "DUE TO")
    stage.cluster.run("scancel", str(stage.job_id))


#: Another user's process that holds a port for a minute.
_LISTENER = (
    f"{sys.executable} -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", 29517)); time.sleep(60)' &\n"
    "sleep 1\n"
)
_SMALL_SHM = 'unshare -m sh -c \'mount -t tmpfs -o size=24m tmpfs /dev/shm; exec \\"\\$0\\" \\"\\$@\\"\''
_SMALL_DISK = 'unshare -m sh -c \'mount -t tmpfs -o size=4m tmpfs checkpoints; exec \\"\\$0\\" \\"\\$@\\"\''

FAULTS = (
    plain("plain-keyerror", code("KeyError on one rank", 2), "keyerror --rank 2", ranks=2),
    plain("plain-keyerror-timeout", code("KeyError on one rank of one node", 1), "keyerror --rank 1", nodes=1, ranks=4),
    plain(
        "plain-worker-keyerror",
        data("KeyError in a DataLoader worker: a document without metadata"),
        "worker-keyerror --workers 1",
    ),
    plain(
        "plain-worker-decode",
        data("half a line of JSON in a shard, in a DataLoader worker", 1),
        "worker-decode --rank 1 --workers 1",
        before=broken_jsonl,
    ),
    plain(
        "plain-worker-killed",
        Truth("unknown", "kill -9 of a DataLoader worker; nothing says why", False, 1, "of rank"),
        "worker-killed --rank 1 --workers 1",
    ),
    plain(
        "plain-shm",
        Truth("shm", "/dev/shm of 24 MB fills up under DataLoader workers", node="of job"),
        "shm --workers 2",
        around=_SMALL_SHM,
        nodes=1,
    ),
    plain("plain-shm-two-nodes", Truth("shm", "/dev/shm of 24 MB on both nodes"), "shm --workers 2", around=_SMALL_SHM),
    plain("plain-shapes", code("layers that do not fit together, on all ranks"), "shapes"),
    plain("plain-embedding", code("token ids past the end of the embedding, on all ranks"), "embedding"),
    plain("plain-unused", code("parameters that the loss does not use, which DDP refuses"), "unused"),
    plain("plain-import", code("flash_attn is not installed"), "import"),
    plain("plain-arguments", code("an option that the program does not have"), "none --learning-rate 0.1"),
    plain("plain-config", code("a key that the configuration does not have"), "config", nodes=1),
    plain("plain-assert", code("an assertion on one rank", 1), "assert --rank 1"),
    plain("plain-segfault", code("a null pointer by ctypes on one rank", 1), "segfault --rank 1"),
    plain("plain-exit", code("sys.exit(7) on one rank", 1), "exit --rank 1"),
    plain("plain-recursion", code("endless recursion on one rank", 0), "recursion --rank 0"),
    plain(
        "plain-sigkill",
        Truth("unknown", "kill -9 of one rank; nothing says why", False, 1, "of rank"),
        "sigkill --rank 1",
    ),
    plain(
        "plain-sigterm",
        Truth("unknown", "SIGTERM of one rank by an unknown process", False, 1, "of rank"),
        "sigterm --rank 1",
    ),
    plain(
        "plain-alloc",
        Truth("host-oom", "torch's CPU allocator cannot have 256 GiB", True, 1, "of rank"),
        "alloc --rank 1",
    ),
    plain(
        "plain-memory-error", Truth("host-oom", "MemoryError on one rank", True, 1, "of rank"), "memory-error --rank 1"
    ),
    plain(
        "plain-slurm-memory",
        Truth(
            "host-oom",
            "one rank needs more than the job's --mem, and Slurm's control group ends it",
            True,
            1,
            "of rank",
        ),
        "grow --rank 1",
        options=("--mem=1500M",),
    ),
    plain(
        "plain-slurm-memory-one-node",
        Truth("host-oom", "a job needs more than its --mem; torchrun sees SIGKILL", True, 1, "of rank"),
        "grow --rank 1",
        nodes=1,
        ranks=2,
        options=("--mem=2000M",),
    ),
    plain(
        "plain-hang",
        Truth("hang", "one rank never comes to the collective; gloo times out", True, 1, "of rank"),
        "skips-collective --rank 1 --timeout 20",
    ),
    plain(
        "plain-extra-collective",
        code("one rank does one collective more than the others", 1),
        "extra-collective --rank 1 --timeout 20",
    ),
    plain(
        "plain-never-arrives",
        Truth("hang", "one rank never joins the process group", True, 1, "of rank"),
        "late --rank 1 --timeout 20",
    ),
    plain(
        "plain-no-gpus",
        code("torchrun is set to take the node's GPUs, and there are none"),
        "none",
        nodes=1,
        ranks="gpu",
    ),
    plain(
        "plain-port-in-use",
        Truth("network", "the master's port is taken", node="of job"),
        "none",
        nodes=1,
        port="29517",
        first=_LISTENER,
    ),
    plain(
        "plain-no-such-host",
        Truth("network", "the master's name cannot be resolved"),
        "none",
        host="gpu-r07n01.cluster.invalid",
        meets_within_s=20,
    ),
    plain(
        "plain-load-missing", Truth("checkpoint", "the checkpoint to resume from is not there", True), "load-missing"
    ),
    plain(
        "plain-load-corrupt",
        Truth("checkpoint", "the checkpoint's archive is cut short"),
        "load-corrupt",
        before=broken_pt,
    ),
    plain(
        "plain-load-safetensors",
        Truth("checkpoint", "a safetensors file of other bytes"),
        "load-safetensors",
        before=broken_safetensors,
    ),
    plain("plain-state-dict", Truth("checkpoint", "a checkpoint of another vocabulary", True), "state-dict"),
    plain("plain-tokenizer", data("the tokenizer's folder is not there"), "tokenizer"),
    plain(
        "plain-disk-full",
        Truth("disk-full", "the checkpoints' file system is full", False, 0, "of rank"),
        "disk-full --rank 0",
        around=_SMALL_DISK,
    ),
    plain(
        "plain-metrics-full",
        Truth("disk-full", "no space for the metrics' file", False, 1, "of rank"),
        "log-full --rank 1",
        around=_SMALL_DISK,
    ),
    plain("plain-files", code("a file opened for each document until there are too many", 1), "files --rank 1"),
    plain("plain-nan", Truth("diverged", "the loss is NaN, and the program stops", True), "nan"),
    plain("plain-scancel", Truth("cancelled", "scancel of the running job"), "none", do=cancel),
    plain(
        "plain-requeued",
        Truth("cancelled", "scontrol requeuehold of the running job, and scancel of the held one"),
        "none",
        do=requeue,
        options=("--requeue", "--open-mode=append"),
    ),
    plain("plain-preempted", Truth("preempted", "a job of a higher tier takes the nodes"), "none", do=preempt),
    plain("plain-time-limit", Truth("time-limit", "the job's minute is over"), "none", options=("--time=1",)),
    plain(
        "plain-lost-node",
        Truth("node-failure", "power cut of a node", node="of job"),
        "none",
        do=kill_node,
        options=("--no-requeue",),  # else it waits in the queue for two minutes, and then trains again
    ),
)
