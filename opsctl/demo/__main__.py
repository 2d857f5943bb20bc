"""`python -m opsctl.demo`: sets the stage, plays the steps, and takes the cluster down, whatever happened."""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from opsctl.demo.screen import say
from opsctl.demo.stage import CLUSTER, DemoFailed, clear_the_stage, cluster_folder
from opsctl.demo.steps import Demo
from opsctl.errors import OpsctlError
from opsctl.localcluster.lifecycle import down
from opsctl.output import message
from opsctl.records.cluster import local_clusters_folder
from opsctl.records.state_files import locked

SAID = "The main job through all of opsctl, on a real Slurm on this machine. Every step shows the command it runs."


def main() -> int:
    """Run the demo. Returns 0, or 1 when a step did not come out."""
    parser = argparse.ArgumentParser(prog="make demo", description=SAID)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up and say how to play with it")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where the run folders go [default: ./demo]")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal ends it as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    clusters = local_clusters_folder()
    clusters.mkdir(parents=True, exist_ok=True)
    try:
        with locked(clusters, clusters / f"{CLUSTER}.lock", 0, "start a demo beside another one"):
            return _demo((given.folder / time.strftime("%Y%m%d-%H%M%S")).resolve(), given.keep)
    except OpsctlError as error:
        message(f"opsctl: {error}")
        return 1


def _demo(folder: Path, keep: bool) -> int:
    """Play it, then take the cluster down, whatever happened; with `keep` it stays up, unless somebody interrupted."""
    started = time.monotonic()
    stays_up = False
    try:
        folder.mkdir(parents=True)
        clear_the_stage()
        Demo(folder).play()
        code, stays_up = 0, keep
        say(f"\nDone in {time.monotonic() - started:.0f} s. The run is in {folder / 'demo'};")
        say("logs/, checkpoints/ and tensorboard/ are under its output/.")
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
        say("The cluster is down again. `make demo KEEP=1` leaves it up to play with.")
        say("`opsctl init NAME` starts a run of your own.")
    return code


def say_how_to_play(folder: Path) -> None:
    """The commands for a cluster that is left up."""
    say("The cluster is up. From the run's folder, with the environment active:")
    for line in (
        f". {shlex.quote(str(Path('.venv/bin/activate').resolve()))}; cd {shlex.quote(str(folder / 'demo'))}",
        "opsctl status",
        "opsctl attempts",
        "opsctl logs -n 20",
        "opsctl queue",
        f"opsctl local-cluster exec --name {CLUSTER} -- sinfo",
        f"opsctl local-cluster down --name {CLUSTER}      # when you are done",
    ):
        say(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
