"""The demo from the first step to the last: sets the stage, plays, and takes the cluster down, whatever happened."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import locked
from opsctl.local.cluster.lifecycle import down
from opsctl.local.demo.screen import say
from opsctl.local.demo.stage import CLUSTER, DemoFailed, clear_the_stage, cluster_folder
from opsctl.local.demo.steps import Demo
from opsctl.run.state.chosen_cluster import local_clusters_folder


def play(folder: Path, keep: bool) -> int:
    """Run the demo in a new folder under `folder`. Returns 0, 1 when a step did not come out, 130 when interrupted.

    Raises OpsctlError while another demo of this user runs.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal ends it as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    clusters = local_clusters_folder()
    clusters.mkdir(parents=True, exist_ok=True)
    with locked(clusters, clusters / f"{CLUSTER}.lock", 0, "start a demo beside another one"):
        return _demo((folder / time.strftime("%Y%m%d-%H%M%S")).resolve(), keep)


def _demo(folder: Path, keep: bool) -> int:
    """Play it, then take the cluster down, whatever happened; with `keep` it stays up, unless somebody interrupted."""
    started = time.monotonic()
    stays_up = False
    try:
        folder.mkdir(parents=True)
        clear_the_stage()
        say("Two minutes or so. Behind each $ is what a person types; what a command says to type next, the demo does.")
        Demo(folder).play()
        code, stays_up = 0, keep
        say(f"\nDone in {time.monotonic() - started:.0f} s. The run is in {folder / 'demo'};")
        say("its page is output/report/index.html, for any browser; logs/ and checkpoints/ are under output/ too.")
    except (DemoFailed, OpsctlError, subprocess.SubprocessError) as failure:
        code, stays_up = 1, keep
        say(f"\nthe demo stopped: {failure}")
        say(f"what it left: {folder}")
    except KeyboardInterrupt:
        code = 130
        say("\ninterrupted: taking the cluster down")
    finally:
        if not stays_up:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            down(cluster_folder())
    if stays_up:
        say_how_to_play(folder)
    elif code == 0:
        say("The cluster is down again. `opsctl demo --keep` (`make demo KEEP=1`) leaves it up to play with.")
        say(f"`{_activation()}opsctl` says what to do next, anywhere.")
    return code


def say_how_to_play(folder: Path) -> None:
    """The commands for a cluster that is left up."""
    say("The cluster is up. From the run's folder:")
    for line in (
        f"{_activation()}cd {shlex.quote(str(folder / 'demo'))}",
        "opsctl status",
        "opsctl attempts",
        "opsctl logs -n 20",
        "opsctl queue",
        f"opsctl local-cluster exec --name {CLUSTER} -- sinfo",
        f"opsctl local-cluster down --name {CLUSTER}      # when you are done",
    ):
        say(f"  {line}")


def _activation() -> str:
    """What makes `opsctl` this one, in front of another command; nothing where PATH already has it."""
    found, activate = shutil.which("opsctl"), Path(sys.prefix) / "bin" / "activate"
    if found is not None and Path(found).resolve().parent == Path(sys.prefix).resolve() / "bin":
        return ""
    return f". {shlex.quote(str(activate))}; " if activate.is_file() else ""
