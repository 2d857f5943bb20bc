r"""Starting this node's ranks: one import of torch and DeepSpeed, then torch's elastic launcher forks them.

    python -u -m trainer.launch --nnodes N --nproc-per-node G --node-rank R --master-addr A --master-port P \
        --attempt-folder D [--node-name NAME] -- TRAINER ARGUMENTS

Global rank = R x G + local rank, so node ranks given in Slurm's order make rank 0 live on the first node. Under D:
`ranks-R.json` (who runs where), `failure-R.json` (this node's first rank to fail, only then), `samples-R.jsonl` and
`timings-R.jsonl` (samples of node and ranks, by `launcher.node_sampler`), `environment.json` (by node 0: packages,
commits, modules, kernels), and `NODE/` with each rank's output and, where a rank raised, torch elastic's error file.
Lines of rank N on the node come out with `[defaultN]:` before them.
With `--standby` as the first word it imports all that and waits for a line on stdin, a `Start`: what it is then to run.
It leaves at the end of stdin, or where the line names other nodes only.
The exit status is 0, the failed rank's own, or 128 + the signal that ended it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import ipaddress
import logging
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from trainer.core.console import complain
from trainer.core.files import be_as_open_as_its_folder, make_folder
from trainer.core.parent import end_with_parent
from trainer.core.preload import begin_anew_with_allocator, import_engine, set_process_defaults
from trainer.formats.attempt.attempt_records import STANDBY, Start
from trainer.formats.attempt.node_samples import PIPE_VARIABLE
from trainer.formats.distribution import install_command
from trainer.formats.tolerant import decode
from trainer.launcher.attempt_records import Node, RankRecord, record_clock, record_failure
from trainer.launcher.environment_record import start_recording
from trainer.launcher.first_failure import DeathWatch, record_in
from trainer.launcher.node_sampler import start_sampler
from trainer.launcher.stacks import listen
from trainer.recipe.model_options import asks_to_recompute

DEFAULT_MAIN = "trainer.pretrain_gpt"
_STORE_KEPT_S = 0.3


def main(arguments: list[str] | None = None) -> int:
    """Fork this node's ranks, wait for their end, and return the exit code.

    0, the first failed rank's, 128 + signal if the node was asked to end, or 1 if no rank could be forked.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == [STANDBY]:
        started = _words_when_started(words[1:])
        if started is None:
            return 0
        words = started
    own, trainer_arguments = _split(words)
    node = _parse(own)
    set_process_defaults(node.nproc_per_node)
    if _is_loopback(node.master_addr):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # A forwarded warning signal would kill the agent while its ranks still save. Ranks inherit the deafness.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        make_folder(node.own_folder)
        record = RankRecord(node)
        record_clock(node)
        if node.node_rank == 0:
            start_recording(node.attempt_folder)
    except OSError as error:
        complain(f"trainer.launch: {error.filename}: {error.strerror}")
        return 1
    try:
        import_engine((node.main,), with_compiler=asks_to_recompute(trainer_arguments))
    except ModuleNotFoundError as error:
        complain(
            f"trainer.launch: {error.name} is not installed for {sys.executable} on {node.node_name}: "
            f"{install_command('trainer')}, or name in [run] environment the script that sets up "
            "Python"
        )
        return 1
    pipe = start_sampler(node.attempt_folder, node.node_rank, node.node_name)
    if pipe is not None:  # the ranks are forked, and have it too
        os.environ[PIPE_VARIABLE] = str(pipe)
    if Path("/dev/nvidiactl").exists():
        record_in(node.own_folder)
    return _launch(node, record, trainer_arguments)


def _words_when_started(words: list[str]) -> list[str] | None:
    """Import for the launch that `words` describe, then return the words of the one that stdin names; None if none."""
    own, trainer_arguments = _split(words)
    node = _parse(own)
    set_process_defaults(node.nproc_per_node)
    with contextlib.suppress(ModuleNotFoundError):  # the launch itself reports it
        import_engine((node.main,), with_compiler=asks_to_recompute(trainer_arguments))
    start = decode(sys.stdin.buffer.readline(), Start)
    if start is None or node.node_name not in start.nodes:
        return None
    os.environ.update(start.variables)
    return ["--node-rank", str(start.nodes.index(node.node_name)), *start.words]


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parse(words: list[str]) -> Node:
    parser = argparse.ArgumentParser(
        prog="trainer.launch",
        allow_abbrev=False,
        description="Start this node's ranks of a training. After -- come the trainer's own options.",
    )
    parser.add_argument("--nnodes", type=_positive, required=True, help="nodes of the whole training")
    parser.add_argument("--nproc-per-node", type=_positive, required=True, help="ranks on each node")
    in_slurm = os.environ.get("SLURM_PROCID")  # with one launcher per node this is the node's place in Slurm's list
    parser.add_argument("--node-rank", type=int, default=in_slurm, required=in_slurm is None, help="this node, from 0")
    parser.add_argument("--master-addr", required=True, help="address of node 0")
    parser.add_argument("--master-port", type=_positive, required=True)
    parser.add_argument("--attempt-folder", type=Path, required=True, help="shared folder of this attempt's records")
    parser.add_argument("--node-name", default=os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    parser.add_argument("--main", default=DEFAULT_MAIN, help="module whose main(arguments) each rank runs")
    parser.add_argument("--shutdown-s", type=_positive, default=30, help="seconds from SIGTERM to SIGKILL for ranks")
    given = vars(parser.parse_args(words))
    if not 0 <= given["node_rank"] < given["nnodes"]:
        parser.error(f"--node-rank {given['node_rank']} is not one of {given['nnodes']} nodes, counted from 0")
    return Node(**{**given, "attempt_folder": given["attempt_folder"].absolute()})


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def _launch(node: Node, record: RankRecord, trainer_arguments: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _keep_torch_quiet()
    watch = DeathWatch(record.note_pid)
    told_to_end = _EndOnce(SignalException)
    # As an argument it would be refused by torch 2.11, which knows no other time than 30 s.
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(node.shutdown_s)
    config = LaunchConfig(
        min_nodes=node.nnodes,
        max_nodes=node.nnodes,
        nproc_per_node=node.nproc_per_node,
        run_id=node.attempt_folder.name or "attempt",
        role="default",
        rdzv_backend="static",
        rdzv_endpoint=f"{node.master_addr}:{node.master_port}",
        rdzv_configs={"rank": node.node_rank, "timeout": 900},
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
        logs_specs=_logs_specs(node),
        local_addr=node.master_addr if node.node_rank == 0 else None,
        signals_to_handle="SIGINT",  # the others are handled below, once each
    )
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, told_to_end)
    watch.start()
    # Torch opens a rank's output in the rank, before that is ours: as open as the folder; then it is the user's again.
    usual_umask = os.umask(~node.own_folder.stat().st_mode & 0o777)
    gc.freeze()  # or each rank's collector would write to, and so copy, every page that it shares with the others
    try:
        elastic_launch(config, run_rank)(node, watch, told_to_end, usual_umask, trainer_arguments)
    except ChildFailedError as error:
        return record_failure(node, watch.deaths(), told_to_end.at, error, trainer_arguments, record.folder)
    except SignalException as error:
        record_failure(node, watch.deaths(), told_to_end.at, None, trainer_arguments, record.folder)
        complain(f"{node.node_name}: ended by {signal.Signals(error.sigval).name}")
        return 128 + error.sigval
    if node.nnodes > 1 and node.node_rank == 0:
        time.sleep(_STORE_KEPT_S)  # it holds the store that the other nodes' ranks may still have open
    return 0


def _keep_torch_quiet() -> None:
    """Switch off what torch's agent says, and what it asks for, where all has been said.

    It logs a failed rank, and a signal, with words of its own; the rank and this launcher have said what matters. And
    once its ranks are done it waits for the other launchers, through a store that goes with the first node's: where
    that was ended a moment before, the last 46 lines of a training that had saved and left were a traceback. The ranks
    have met in a barrier of their own.
    """
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

    for chatty in (
        "torch.distributed.elastic.agent.server.api",
        "torch.distributed.elastic.multiprocessing.api",
        "torch.multiprocessing.spawn",
    ):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    agent: Any = SimpleElasticAgent
    agent._exit_barrier = lambda _self: None


def _logs_specs(node: Node) -> Any:
    """Return torch's settings for the ranks' output and error files, in a folder that only its owner can use."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std

    class AsOpenAsOurs(DefaultLogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            made = super().reify(envs)
            for folder in sorted(node.own_folder.rglob("*")):
                if folder.is_dir() and not folder.is_symlink():
                    # Torch opens its logs by name, so no other user may put anything there.
                    be_as_open_as_its_folder(folder, closed=True)
            return made

    return AsOpenAsOurs(log_dir=str(node.own_folder), tee=Std.ALL)


def run_rank(
    node: Node, watch: DeathWatch, told_to_end: _EndOnce, usual_umask: int, trainer_arguments: list[str]
) -> None:
    """One forked rank: the trainer's main, its traceback printed here, its refusals (exit status 2) without one."""
    watch.report(int(os.environ["LOCAL_RANK"]))
    listen(int(os.environ["RANK"]))
    os.umask(usual_umask)
    end_with_parent()  # or it would hold its GPU
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = [node.main, *trainer_arguments]
    try:
        status = importlib.import_module(node.main).main(trainer_arguments)
    except Exception as error:
        traceback.print_exc()
        _leave_error_file(error)
        _end(1)  # its connections go with it, not while its libraries' exit handlers take their time
    except SystemExit as left:
        if not isinstance(left.code, str):
            raise
        traceback.print_exc()  # a module gave up with a reason: an error that may have ended the others
        _leave_error_file(left)
        _end(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    if status:
        _end(status)  # its reason is printed; its threads are not waited for
    # Returning, a rank waits for the agent to fetch its result. An agent that ends fetches nothing, and waits
    # for the rank, until it kills it.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
    if told_to_end.is_set:
        os._exit(0)


def _leave_error_file(error: BaseException) -> None:
    """Torch's error file, and only that: an exception that torch itself sees leaves a pickle in the node's /tmp too."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    with contextlib.suppress(OSError):  # a full disk: it has been printed
        # As open as its folder from its first moment: the launcher can kill this rank in the next.
        os.umask(~Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent.stat().st_mode & 0o777)
        get_error_handler().record_exception(error)


class _EndOnce:
    """A signal handler that ends the launch at the first signal and is deaf to its repetitions.

    Slurm repeats SIGTERM within a second; raising again inside the agent's own shutdown would leave ranks behind.
    """

    def __init__(self, exception: type[Exception]) -> None:
        self.at: datetime | None = None
        self._exception: Any = exception
        self._shared = mmap.mmap(-1, 1)  # one byte that the forked ranks see

    @property
    def is_set(self) -> bool:
        """Return whether the launch was asked to end; true in the ranks too."""
        return self._shared[0] != 0

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.at is None:
            self.at = datetime.now().astimezone()
            self._shared[0] = 1
            raise self._exception(f"got signal {number}", sigval=signal.Signals(number))


def _end(status: int) -> None:
    """End without Python's own finalization, in which another SIGTERM would change the exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    begin_anew_with_allocator()
    _end(main())
