"""Faults in opsctl's own trainings: chains of four ranks that die of what is done to them while they train."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cluster.conftest import wait_until
from tests.cluster.faults.fault import Fault, Stage, Truth, drop_connections

TP2 = {"num_layers": "2\ntensor_model_parallel_size = 2", "lr": "1e-3"}
PP2 = {"num_layers": "2\npipeline_model_parallel_size = 2", "lr": "1e-3"}
TP2_PP2 = {"num_layers": "2\ntensor_model_parallel_size = 2\npipeline_model_parallel_size = 2", "lr": "1e-3"}
#: A hung training comes to its limit before a collective gives up.
SHORT = {"time": "2:00", "exit_margin": '"0:20"'}
#: The job looks at its ranks after a quarter of a minute without a word, and ends the step after half of one.
WATCHED = '\n[watch]\nsilent_most = "0:15"\n'


def signalled(number: signal.Signals, rank: int) -> Callable[[Stage], None]:
    """Send that to a rank once it trains."""
    return lambda stage: os.kill(stage.pid(rank), number)


def kill_slurmd(stage: Stage) -> None:
    """The last node's slurmd is killed; Slurm finds its node down."""
    stage.culprit = stage.nodes[-1]
    stage.cluster.kill(f"slurmd-{stage.culprit}")


def kill_first_slurmd(stage: Stage) -> None:
    stage.culprit = stage.nodes[0]
    stage.cluster.kill(f"slurmd-{stage.culprit}")


def kill_node(stage: Stage) -> None:
    """A power cut of the last node."""
    stage.culprit = stage.nodes[-1]
    stage.cluster.kill_node(stage.culprit)


def mark_down(stage: Stage) -> None:
    stage.culprit = stage.nodes[-1]
    stage.cluster.run("scontrol", "update", f"NodeName={stage.culprit}", "State=DOWN", "Reason=GPU fell off the bus")


def fill_disk(stage: Stage) -> None:
    """Nothing is left of the checkpoints' file system."""
    checkpoints = stage.training.paths.checkpoints
    file = os.open(checkpoints / "old-run.tar", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(file, b"\0" * 4096):
            pass
    os.close(file)


def freeze_checkpoints(stage: Stage) -> None:
    """No one may write there any more (chattr +i holds root too)."""
    stage.cluster.run("chattr", "+i", stage.training.paths.checkpoints)
    stage.wait_until_over()
    stage.cluster.run("chattr", "-i", stage.training.paths.checkpoints)


def truncate_data(stage: Stage) -> None:
    """A user writes the mapped data file again while it is read."""
    os.truncate(stage.folder / "data.bin", 0)


def cancel(stage: Stage) -> None:
    stage.cluster.run("scancel", str(stage.job_id))


def cancel_by_signal(stage: Stage) -> None:
    stage.cluster.run("scancel", "--signal=KILL", "--full", str(stage.job_id))


def preempt(stage: Stage) -> None:
    """A job of a partition of higher tier needs all nodes."""
    urgent = stage.cluster.sbatch("sleep 5", "--partition=urgent", "--nodes=4", "--exclusive", "--time=1")
    stage.wait_until_over()
    stage.cluster.wait_for_state(urgent, "COMPLETED")


def drop(stage: Stage) -> None:
    drop_connections(stage.pid(2))


def hooked(name: str, rank: int | str) -> str:
    return f'export PYTHONPATH="$(dirname "${{BASH_SOURCE[0]}}")/hooks"; export SITE_FAULT={name}:{rank}'


_SECOND_TASK = '[ "${SLURM_ARRAY_TASK_ID}" = 2 ] && [ "$SLURM_PROCID" = 0 ] && '
_LATEST = "output/checkpoints/$(cat output/checkpoints/latest)"


def of_rank(cause: str, about: str, rank: int, user_fault: bool = False) -> Truth:
    return Truth(cause, about, user_fault, rank, "of rank")


def end_first_task(stage: Stage, saves: int = 1) -> None:
    """End the first task, kill -9, when there are so many checkpoints; the second one starts from them."""
    stage.training.wait_for_log("successfully saved checkpoint at iteration", saves)
    os.kill(stage.pid(0), signal.SIGKILL)
    stage.training.wait_for_log("START TIME:", 2)
    wait_until(lambda: len(stage.training.recorded()) > 1, 60, "the second attempt")
    stage.job_id = int(stage.training.recorded()[1]["job_id"])


def cancel_when_told_of_silence(stage: Stage) -> None:
    stage.training.wait_for_log("opsctl: nothing was logged for")
    time.sleep(3)
    cancel(stage)


def limp(stage: Stage) -> None:
    """One rank runs a tenth of the time, as on a node that throttles, until a user ends the job."""
    pid = stage.pid(3)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.9)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
    cancel(stage)


def resumed(name: str, truth: Truth, damage: str, changes: Mapping[str, str] | None = None, saves: int = 1) -> Fault:
    """A second task that finds its checkpoints damaged by `damage`, a shell line run in the run's folder."""
    line = f'cd "$(dirname "${{BASH_SOURCE[0]}}")"; {_SECOND_TASK} {{ {damage} ; }}'
    return Fault(
        name,
        truth,
        lambda stage: end_first_task(stage, saves),
        changes={"save_interval": "20", **(changes or {})},
        environment=line,
        tasks="1-2%1",
    )


def at_start(name: str, truth: Truth, damage: str, **changes: str) -> Fault:
    """A task whose node finds `damage` done after the checks of the submit."""
    line = f'cd "$(dirname "${{BASH_SOURCE[0]}}")"; [ "$SLURM_PROCID" = 0 ] && {{ {damage} ; }}'
    return Fault(name, truth, _start_only, changes=changes, environment=line)


def _start_only(stage: Stage) -> None:
    stage.wait_until_over()


_KILLED = "kill -9 of a rank by a user on its node; nothing says why"

FAULTS = (
    Fault("own-sigkill-dp", of_rank("unknown", _KILLED, 3), signalled(signal.SIGKILL, 3)),
    Fault("own-sigkill-tp2", of_rank("unknown", _KILLED + ", TP 2", 0), signalled(signal.SIGKILL, 0), TP2),
    Fault("own-sigkill-pp2", of_rank("unknown", _KILLED + ", PP 2", 2), signalled(signal.SIGKILL, 2), PP2),
    Fault(
        "own-segfault",
        of_rank("user-code", "a null pointer in a module of the user's, by ctypes", 1, True),
        environment=hooked("segfault", 1),
    ),
    Fault(
        "own-segfault-sent",
        of_rank("user-code", "kill -SEGV of a rank of PP 2, as a crash in a library looks", 3, True),
        signalled(signal.SIGSEGV, 3),
        PP2,
    ),
    Fault(
        "own-abort",
        of_rank("user-code", "a module of the user's calls abort()", 2, True),
        environment=hooked("abort", 2),
    ),
    Fault(
        "own-keyerror",
        of_rank("user-code", "KeyError in a module of the user's on one rank; the others lose it", 2, True),
        environment=hooked("keyerror", 2),
    ),
    Fault(
        "own-keyerror-tp2pp2",
        of_rank("user-code", "KeyError in a module of the user's, TP 2 and PP 2", 0, True),
        changes=TP2_PP2,
        environment=hooked("keyerror", 0),
    ),
    Fault(
        "own-shapes-all",
        Truth("user-code", "a matrix product of wrong shapes on all ranks", True),
        environment=hooked("bad_shape", "all"),
    ),
    Fault(
        "own-index",
        of_rank("user-code", "an embedding asked for an id past its end, on one rank", 3, True),
        environment=hooked("index_error", 3),
    ),
    Fault(
        "own-system-exit",
        of_rank("user-code", "a module of the user's ends one rank by SystemExit", 1, True),
        environment=hooked("exits", 1),
    ),
    Fault(
        "own-memory-error",
        of_rank("host-oom", "numpy cannot have more memory under a limit of the process", 3, True),
        environment=hooked("out_of_memory", 3),
    ),
    Fault(
        "own-torch-alloc",
        of_rank("host-oom", "torch's CPU allocator cannot have 256 GiB", 0, True),
        environment=hooked("torch_out_of_memory", 0),
    ),
    Fault(
        "own-bus-error",
        of_rank("unknown", "SIGBUS of one rank, and nothing says of what", 2),
        environment=hooked("bus_error", 2),
    ),
    Fault(
        "own-stuck-rank",
        of_rank("hang", "one rank waits for ever in a module of the user's, until the job's limit", 1, True),
        _start_only,
        SHORT,
        WATCHED + "end_hung = false\n",
        environment=hooked("stuck", 1),
    ),
    Fault(
        "own-stuck-rank-cancelled",
        of_rank("hang", "one rank waits for ever in a module of the user's; a user sees it and cancels", 3, True),
        cancel_when_told_of_silence,
        tables=WATCHED + "end_hung = false\n",
        environment=hooked("stuck", 3),
    ),
    Fault(
        "own-stopped-rank",
        of_rank("hang", "SIGSTOP of one rank; the job sees it and ends the step", 2),
        signalled(signal.SIGSTOP, 2),
        tables=WATCHED,
    ),
    Fault(
        "own-stopped-rank-tp2",
        of_rank("hang", "SIGSTOP of one rank of TP 2; the job sees it and ends the step", 3),
        signalled(signal.SIGSTOP, 3),
        TP2,
        WATCHED,
    ),
    Fault("own-dropped-connection", Truth("network", "the kernel resets one rank's TCP connections"), drop),
    Fault(
        "own-dropped-connection-pp2", Truth("network", "the kernel resets one rank's TCP connections, PP 2"), drop, PP2
    ),
    Fault("own-lost-slurmd", Truth("node-failure", "kill -9 of a node's slurmd", node="of job"), kill_slurmd),
    Fault(
        "own-lost-first-slurmd",
        Truth("node-failure", "kill -9 of the first node's slurmd", node="of job"),
        kill_first_slurmd,
    ),
    Fault(
        "own-lost-node",
        Truth("node-failure", "power cut of a node: everything on it is killed", node="of job"),
        kill_node,
    ),
    Fault("own-node-marked-down", Truth("node-failure", "an administrator sets a node DOWN", node="of job"), mark_down),
    Fault("own-scancel", Truth("cancelled", "scancel of the running job"), cancel),
    Fault("own-scancel-kill", Truth("cancelled", "scancel --signal=KILL --full of the running job"), cancel_by_signal),
    Fault("own-preempted", Truth("preempted", "a job of a higher tier takes the nodes"), preempt),
    Fault("own-slow-node", Truth("cancelled", "a node that runs at a tenth until a user cancels the job"), limp),
    Fault(
        "own-slurm-memory",
        of_rank("host-oom", "one rank needs more memory than the job has, and Slurm's control group ends it", 3, True),
        environment=hooked("grow", 3),
    ),
    Fault(
        "own-disk-full",
        Truth("disk-full", "the checkpoints' file system fills up before a save"),
        fill_disk,
        {"save_interval": "60"},
    ),
    Fault(
        "own-disk-full-async",
        Truth("disk-full", "the checkpoints' file system fills up, with saves beside the training"),
        fill_disk,
        {"save_interval": "60\nasync_save = true"},
    ),
    Fault(
        "own-save-denied",
        Truth("user-code", "no one may write into the checkpoints' folder any more", True),
        freeze_checkpoints,
        {"save_interval": "60"},
    ),
    Fault(
        "own-nan", Truth("diverged", "a learning rate of 1e9", True), _start_only, {"lr": "1e9", "log_interval": "1"}
    ),
    Fault(
        "own-truncated-while-read",
        Truth("data", "the mapped .bin is emptied while ranks read it: SIGBUS", True),
        truncate_data,
    ),
    at_start("own-missing-data", Truth("data", "the .bin is gone when the job starts", True), "rm -f data.bin"),
    at_start("own-truncated-bin", Truth("data", "half of the .bin is missing", True), "truncate -s 512 data.bin"),
    at_start(
        "own-corrupt-idx",
        Truth("data", "the .idx begins with other bytes", True),
        "printf 'XXXXXXXXXXXXXXXX' | dd of=data.idx conv=notrunc status=none",
    ),
    at_start("own-truncated-idx", Truth("data", "the .idx ends early", True), "truncate -s 60 data.idx"),
    at_start(
        "own-wrong-pointers",
        Truth("data", "the .idx points past the end of the .bin", True),
        "printf '\\377\\377\\377\\177' | dd of=data.idx bs=1 seek=70 conv=notrunc status=none",
    ),
    resumed(
        "own-corrupt-checkpoint",
        Truth("checkpoint", "bytes of the optimizer's states are others"),
        f'f=$(ls {_LATEST}/*optim_states.pt | head -1); dd if=/dev/urandom of="$f" bs=1 seek=3000 count=2000 '
        "conv=notrunc status=none",
    ),
    resumed(
        "own-truncated-checkpoint",
        Truth("checkpoint", "a file of the checkpoint is cut short"),
        f'truncate -s 1000 "$(ls {_LATEST}/*model_states.pt | head -1)"',
        TP2,
    ),
    resumed(
        "own-missing-checkpoint-file",
        Truth("checkpoint", "a file of the checkpoint is gone"),
        f'rm -f "$(ls {_LATEST}/layer*.pt | head -1)"',
        PP2,
    ),
    resumed(
        "own-missing-latest",
        Truth("checkpoint", "checkpoints, and nothing that names the latest"),
        "rm -f output/checkpoints/latest",
        saves=2,  # of a single one there is no doubt
    ),
    resumed(
        "own-latest-names-nothing",
        Truth("checkpoint", "latest names a folder that is not there"),
        "echo global_step99990 > output/checkpoints/latest",
    ),
    Fault(
        "own-no-python",
        Truth("user-code", "the environment script gives a Python without torch", True),
        _start_only,
        environment="export PATH=/usr/bin:/bin",
    ),
    Fault(
        "own-broken-environment",
        Truth("user-code", "the environment script ends with exit 1", True),
        _start_only,
        environment='echo "module: command not found" >&2; exit 1',
    ),
    Fault(
        "own-import-error",
        Truth("user-code", "a module of the user's shadows numpy", True),
        _start_only,
        before=lambda stage: _shadow(stage.hooks),
        environment=hooked("none", "none"),
    ),
)


def _shadow(hooks: Path) -> None:
    hooks.mkdir(exist_ok=True)
    (hooks / "numpy.py").write_text('"""Our own arrays."""\n\nfrom array import array\n')
    shutil.rmtree(hooks / "__pycache__", ignore_errors=True)
