"""The tracker of one node: `python -m trainer.launcher.energy.sampler ORDER`, started by the node's first rank.

It runs next to the training and shares only a pipe with it: orders arrive, and when it closes, however the rank ended,
the last total is written. A signal to the job's processes writes one too, and ends nothing. It uses no network and does
not ask Slurm: the job's part of the node follows from the environment (`allocation`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

import trainer
from trainer.core.files import HeldFolder, write_atomically
from trainer.formats.attempt.carbon import Beside, file_name, file_text
from trainer.formats.distribution import install_command
from trainer.formats.json_text import json_line
from trainer.launcher.energy.allocation import Allocation, allocation

FLUSH, STOP = b"flush\n", b"stop\n"


class Order(msgspec.Struct, frozen=True):
    """The order of a measurement, with the place of its results."""

    folder: str  # is there
    country: str | None = None  # ISO 3166, three letters
    region: str | None = None  # as codecarbon names it
    intensity_g_per_kwh: float | None = None  # in place of what the country has
    measure_s: float = 15.0  # between two measurements
    write_s: float = 60.0  # between two totals on disk, without an order


def order_line(order: Order) -> str:
    """One argument of a command line."""
    return json_line(order)


def read_order(argument: str) -> Order:
    """Parse the text of `order_line`."""
    return msgspec.json.decode(argument, type=Order)


_MOST_NOTES, _LONGEST_NOTE = 8, 200
# Codecarbon's own thread may measure while a flush does, and would then count that time twice: it never comes to it.
_NEVER_S = 1e8
_LESS_PRIORITY = 5


def main(words: Sequence[str]) -> int:
    """Measure until the rank says that it ends, or is gone. 1 where nothing can be measured, with one line why."""
    order = read_order(words[0])
    told = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # codecarbon has much to say
    wakeups, parent = _wakeups(), _parent()
    os.nice(_LESS_PRIORITY)
    own = _allocation()
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SLURMD_"))]:
        del os.environ[name]  # or it asks Slurm's controller about the job, and takes all its nodes for this one
    try:
        meter = Meter(order, own)
    except Exception as error:  # a library of any release, on any machine
        os.write(told, f"codecarbon cannot measure here: {error!r}\n".encode())
        return 1
    _follow(meter, order, wakeups, parent)
    return 0


def _wakeups() -> int:
    """Return a descriptor that becomes readable after a signal; no signal ends this process."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, lambda _number, _frame: None)
    return reading


def _parent() -> list[int]:
    """Return a descriptor that becomes readable once the rank is gone, even if a child of it keeps the pipe open."""
    with contextlib.suppress(OSError):  # gone already: then the pipe is closed
        return [os.pidfd_open(os.getppid())]
    return []


def _allocation() -> Allocation:
    import psutil

    logical = os.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or logical
    return allocation(os.environ, socket.gethostname(), logical, cores, len(os.sched_getaffinity(0)))


def _follow(meter: Meter, order: Order, wakeups: int, parent: list[int]) -> None:
    """Measure, and write when asked, when it is time, after a signal and at the end."""
    meter.write()
    written = time.monotonic()
    while True:
        ready, _, _ = select.select([0, wakeups, *parent], [], [], order.measure_s)
        words = os.read(0, 4096) if 0 in ready else b"nothing"
        if not words or STOP in words or set(parent) & set(ready):
            meter.end()
            return
        if wakeups in ready:
            os.read(wakeups, 4096)
        meter.measure()
        if ready or time.monotonic() - written >= order.write_s:
            meter.write()
            written = time.monotonic()


class Meter:
    """Codecarbon, offline, of the job's GPUs and the whole node's CPU and RAM, and the file of its totals.

    Raises whatever codecarbon raises, RuntimeError where it gives no total.
    """

    def __init__(self, order: Order, own: Allocation) -> None:
        from codecarbon import OfflineEmissionsTracker
        from codecarbon.output_methods.base_output import BaseOutput

        class Totals(BaseOutput):
            def out(_self, total: Any, _delta: Any) -> None:
                self._values = total.values

        self._values: OrderedDict[str, Any] = OrderedDict()
        self._own, self._notes = own, _Notes()
        # All that could ask a network or write elsewhere is given here: a configuration file of the user's may say
        # otherwise, and may say what of the hardware is known.
        self._tracker: Any = OfflineEmissionsTracker(
            country_iso_code=order.country,
            region=order.region,
            cloud_provider=None,
            cloud_region=None,
            force_carbon_intensity_g_co2e_kwh=order.intensity_g_per_kwh,
            gpu_ids=None if own.devices is None else list(own.devices),
            tracking_mode="machine",
            measure_power_secs=_NEVER_S,
            api_call_interval=-1,
            allow_multiple_runs=True,
            log_level="warning",
            pue=1.0,
            wue=0.0,
            output_dir=order.folder,
            output_methods=[],
            output_handlers=[Totals()],
            emissions_endpoint=None,
            electricitymaps_api_token="",
        )
        logging.getLogger("codecarbon").addHandler(self._notes)
        self._tracker.start()
        self.measure()
        if not self._values:
            raise RuntimeError("; ".join(self._notes.sentences) or "it gives no total")
        self._began_at = datetime.now(UTC) - timedelta(seconds=self._values["duration"])
        self._folder = HeldFolder(Path(order.folder))
        self._name = file_name(own.job, own.host, self._values["run_id"])

    def measure(self) -> None:
        """Add up what was used since the last time."""
        self._tracker.flush()

    def write(self, is_final: bool = False) -> None:
        """Replace the file. A disk that takes nothing now may the next time: the total is kept here."""
        with contextlib.suppress(OSError):
            write_atomically(self._folder.place() / self._name, file_text(self._values, self._beside(is_final)))

    def end(self) -> None:
        """Measure and write for the last time."""
        self._tracker.stop()
        self.write(is_final=True)

    def _beside(self, is_final: bool) -> Beside:
        methods = _methods(self._tracker)
        return Beside(
            host=self._own.host,
            job=self._own.job,
            devices=_device_names(self._tracker, self._own.devices),
            host_share=self._own.share,
            began_at=self._began_at,
            is_final=is_final,
            cpu_method=methods.get("cpu", ""),
            ram_method=methods.get("ram", ""),
            gpu_method=methods.get("gpu", ""),
            notes=tuple(self._notes.sentences),
        )


class _Notes(logging.Handler):
    """The first few warnings of codecarbon, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep its text on one line."""
        sentence = " ".join(record.getMessage().split())[:_LONGEST_NOTE]
        if sentence not in self.sentences and len(self.sentences) < _MOST_NOTES:
            self.sentences.append(sentence)


def _methods(tracker: Any) -> dict[str, str]:
    """Return how each part is measured. Codecarbon's names for this have changed; empty if unknown."""
    found = {}
    for one in tracker._hardware:
        kind = type(one).__name__
        if kind == "CPU":
            found["cpu"] = str(getattr(one, "_mode", ""))
        elif kind == "RAM":
            found["ram"] = "given" if getattr(one, "_force_ram_power", None) is not None else "model"
        elif kind == "GPU":
            of_nvidia = any("Nvidia" in type(device).__name__ for device in one.devices.devices)
            found["gpu"] = "nvml" if of_nvidia else "amdsmi"
    return found


def _device_names(tracker: Any, devices: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the counted GPUs by unique ids, so that two jobs' first GPUs are not taken for one; else as given."""
    for one in tracker._hardware:
        if type(one).__name__ == "GPU":
            with contextlib.suppress(Exception):
                counted = set(one._get_gpu_ids())
                return tuple(info["uuid"] for info in one.devices.get_gpu_static_info() if info["gpu_index"] in counted)
    return devices


#: Longest time that a rank that leaves waits for the last total to be written.
LAST_TOTAL_S = 3.0
_LONGEST_SENTENCE = 4096


def missing() -> str | None:
    """Return what is missing for measuring, with what to type; None if nothing is."""
    if importlib.util.find_spec("codecarbon") is not None:
        return None
    return f"codecarbon is not installed for {sys.executable}: {install_command('carbon')}, or remove the option"


class Tracker:
    """The tracker of this rank's node: a process that reads orders from a pipe and ends by itself when that closes."""

    def __init__(self, process: subprocess.Popen[bytes], tell: Callable[[str], None]) -> None:
        self._process, self._tell = process, tell
        self._has_told = False
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)

    def flush(self) -> None:
        """Have it write its total soon. Returns at once; says once where there is no tracker any more."""
        self._send(FLUSH)
        self._look()

    def close(self) -> None:
        """Have it write its last total, and wait for that a moment."""
        self._send(STOP)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_TOTAL_S)
        self._look()

    def _send(self, order: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone, or so far behind that the pipe is full
            os.write(self._process.stdin.fileno(), order)

    def _look(self) -> None:
        status = self._process.poll()
        if not status or self._has_told:
            return
        self._has_told = True
        assert self._process.stderr is not None
        said = self._process.stderr.read(_LONGEST_SENTENCE).decode(errors="replace").strip()
        why = said.splitlines()[-1] if said else f"its exit status was {status}"
        self._tell(f"energy is not measured on this node from here on: {why}")


@contextmanager
def tracker_of_node(order: Order, tell: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Run a tracker inside the block; the yielded function writes its total. Its failure never ends the training."""
    try:
        tracker = Tracker(_start(order), tell)
    except OSError as error:
        tell(f"energy is not measured on this node: cannot start {sys.executable}: {error.strerror}")
        yield lambda: None
        return
    try:
        yield tracker.flush
    finally:
        tracker.close()


def _start(order: Order) -> subprocess.Popen[bytes]:
    above = str(Path(trainer.__file__).resolve().parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer.launcher.energy.sampler", order_line(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{above}:{inherited}" if inherited else above},
        start_new_session=True,  # what is sent to the rank's process group is not for it
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
