"""`make demo`: the main job through all of opsctl, on a real Slurm on this machine, as a person would type it.

Every step shows the command it runs. When something does not come out as the demo says, it stops with exit 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.errors import OpsctlError
from opsctl.localcluster.lifecycle import down
from opsctl.records.cluster import local_clusters_folder
from opsctl.records.state_files import locked

CLUSTER = "demo"
VOCAB_SIZE = 1024
COMMAND_TIMEOUT_S = 120
#: Ways an attempt may end here.
STOPS = ("kill-switch", "finished")
#: Folders of the standard library that are not its own sources, or tests.
LEFT_OUT = ("test", "tests", "idlelib", "*-packages")


class DemoFailed(Exception):
    """A step did not come out as the demo says it does."""


@dataclass(frozen=True)
class Line:
    """One iteration of the training log."""

    iteration: int
    loss: float


def main() -> int:
    """Run the demo. Returns 0, or 1 when a step did not come out."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up and say how to play with it")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where the run folders go [default: ./demo]")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal ends it as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    clusters = local_clusters_folder()
    clusters.mkdir(parents=True, exist_ok=True)
    try:
        with locked(clusters / f"{CLUSTER}.lock", 0, "start a demo beside another one"):
            return _demo((given.folder / time.strftime("%Y%m%d-%H%M%S")).resolve(), given.keep)
    except OpsctlError as error:
        sys.stderr.write(f"opsctl: {error}\n")
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


OPSCTL = [sys.executable, "-m", "opsctl"]


def cluster_folder() -> Path:
    return local_clusters_folder() / CLUSTER


def clear_the_stage() -> None:
    """End what an earlier demo has left up, and forget its queue: its chains would run before this one's."""
    if down(cluster_folder()):
        say("(an earlier demo had left its cluster up: it is down now)")
    shutil.rmtree(cluster_folder(), ignore_errors=True)


class Demo:
    """The steps, in order. Each method is one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_folder = folder / "demo"
        self.entropy_nats = math.inf
        self.chain = 0

    def play(self) -> None:
        self.bring_up_the_cluster()
        self.prepare_the_corpus()
        self.plan()
        self.submit()
        self.watch_the_loss_fall()
        self.try_a_second_chain()
        self.stop_it_through_the_kill_switch()
        self.go_on()

    def bring_up_the_cluster(self) -> None:
        title("A real Slurm on this machine: 4 nodes, 2 GPUs each in Slurm's books, the trainer on the CPU")
        self.opsctl("local-cluster", "up", "--name", CLUSTER, "--nodes", "4", "--gpus", "2", where=self.folder)

    def prepare_the_corpus(self) -> None:
        title("A run folder, and a corpus: the Python standard library's own sources, one document per file")
        self.opsctl("init", "demo", where=self.folder)
        library = sysconfig.get_path("stdlib")
        excludes = [word for name in LEFT_OUT for word in ("--exclude", name)]
        corpus = ("--output-prefix", "data/corpus", "--vocab-size", str(VOCAB_SIZE), "--include", "*.py")
        self.opsctl("data", "prepare", library, *corpus, *excludes)
        about = json.loads(next(iter((self.run_folder / "data").glob("*_document.json"))).read_text())
        self.entropy_nats = float(about["entropy_nats"])
        vocabulary = about["vocab_size"]
        say(f"   a model that knows nothing has a loss of ln({vocabulary}) = {math.log(vocabulary):.2f};")
        say(f"   one that only knows how often each token comes, {self.entropy_nats:.2f}, the corpus's unigram entropy")

    def plan(self) -> None:
        title("The plan")
        self.opsctl("plan")

    def submit(self) -> None:
        title("A chain of three array tasks, one at a time: tensor 2 x pipeline 2 x data 2 over four nodes")
        self.chain = int(self.opsctl("submit", "--array", "1-3%1", "--cluster", CLUSTER).strip().splitlines()[-1])

    def watch_the_loss_fall(self) -> None:
        title("The loss falls from about ln(vocabulary) to below the unigram entropy")
        below = 0
        shown = 0

        def deep_enough() -> bool:
            nonlocal below, shown
            lines = self.log_lines()
            for line in lines:
                if line.iteration > shown and (line.iteration <= 3 or line.iteration % 10 == 0):
                    say(f"   iteration {line.iteration:4d}   loss {line.loss:.3f}")
                shown = max(shown, line.iteration)
            below = sum(line.loss < self.entropy_nats for line in lines[-5:])
            return below == 5

        self.wait_for(deep_enough, 300, "the loss to fall below the unigram entropy")
        say(f"   below {self.entropy_nats:.2f} for five iterations in a row")

    def try_a_second_chain(self) -> None:
        title("A second chain beside a live one is refused; behind it, it is welcome")
        self.opsctl("submit", "--array", "1-2%1", expect=1)
        self.opsctl("submit", "--array", "1-2%1", "--after", "auto")
        self.opsctl("status")
        self.opsctl("watch", "training")

    def stop_it_through_the_kill_switch(self) -> None:
        title("The kill switch: the running task saves and leaves, a queued one sees it and leaves at once")
        self.slurm("scontrol", "hold", f"{self.chain}_2", f"{self.chain}_3")
        self.opsctl("kill-switch", "trigger", "--reason", "showing how")
        self.wait_for(lambda: self.ended(1), 120, "task 1 to save and leave")
        self.slurm("scontrol", "release", f"{self.chain}_2")
        self.wait_for(lambda: self.ended(2), 120, "task 2 to see the switch and leave")
        self.opsctl("attempts")

    def go_on(self) -> None:
        title("The switch is deactivated; the next task goes on from the very iteration saved")
        saved = max((attempt.get("iteration_at_end") or 0 for attempt in self.attempts()), default=0)
        self.opsctl("kill-switch", "deactivate")
        self.slurm("scontrol", "release", f"{self.chain}_3")
        self.wait_for(
            lambda: any(line.iteration > saved + 2 for line in self.log_lines()), 180, f"iteration {saved + 3}"
        )
        after = [line for line in self.log_lines() if line.iteration > saved]
        if after[0].iteration != saved + 1 or len({line.iteration for line in after}) != len(after):
            raise DemoFailed(f"the training was saved at iteration {saved} and went on at {after[0].iteration}")
        say(f"   saved at iteration {saved}, went on with iteration {after[0].iteration}, loss {after[0].loss:.3f}")
        self.opsctl("status")

    # What the steps are made of.

    def opsctl(self, *words: str, expect: int = 0, where: Path | None = None) -> str:
        """Show and run one opsctl command; its messages go to the screen. Returns its stdout, which is shown too."""
        say(f"$ {shlex.join(['opsctl', *words])}")
        done = subprocess.run(
            [*OPSCTL, *words],
            cwd=where or self.run_folder,
            stdout=subprocess.PIPE,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        sys.stdout.write(done.stdout)
        sys.stdout.flush()
        if done.returncode != expect:
            raise DemoFailed(f"`{shlex.join(['opsctl', *words])}` left with exit code {done.returncode}, not {expect}")
        return done.stdout

    def slurm(self, *words: str) -> None:
        """One of Slurm's own commands on the demo's cluster."""
        self.opsctl("local-cluster", "exec", "--name", CLUSTER, "--", *words)

    def json(self, *words: str) -> Any:
        done = subprocess.run(
            [*OPSCTL, *words, "--json"],
            cwd=self.run_folder,
            stdout=subprocess.PIPE,
            timeout=COMMAND_TIMEOUT_S,
            check=True,
            start_new_session=True,  # Ctrl-C is the demo's, not that of a look in passing
        )
        return json.loads(done.stdout)

    def attempts(self) -> list[dict[str, Any]]:
        """This chain's attempts, oldest first."""
        attempts: list[dict[str, Any]] = self.json("attempts")["attempts"]
        return attempts

    def ended(self, task: int) -> bool:
        """True once the chain's array task `task` has an attempt that ended."""
        return any(
            attempt.get("array_task") in (task, str(task)) and attempt.get("reason") for attempt in self.attempts()
        )

    def log_lines(self) -> list[Line]:
        """The iterations that the training log tells of, in its order."""
        from opsctl.logs.parser import iteration_losses

        try:
            text = (self.run_folder / "output" / "logs" / "main_log.txt").read_text(errors="replace")
        except FileNotFoundError:
            return []
        return [Line(iteration, loss) for iteration, loss in iteration_losses(text)]

    def wait_for(self, happened: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until `happened`, showing that time passes. Raises DemoFailed, with the log's end, after `timeout_s`."""
        with progress(what) as tick:
            deadline = time.monotonic() + timeout_s
            while not happened():
                if time.monotonic() > deadline:
                    tick(done=True)
                    subprocess.run([*OPSCTL, "logs", "-n", "15"], cwd=self.run_folder, timeout=COMMAND_TIMEOUT_S)
                    raise DemoFailed(f"waited {timeout_s:.0f} s for {what}")
                if lost := next((a for a in self.attempts() if a.get("reason") and a["reason"] not in STOPS), None):
                    tick(done=True)
                    subprocess.run([*OPSCTL, "logs", "-n", "15"], cwd=self.run_folder, timeout=COMMAND_TIMEOUT_S)
                    raise DemoFailed(f"attempt {lost['number']} ended: {lost['reason']}")
                tick()
                time.sleep(1)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """Seconds that pass, in place on a terminal, a line each ten seconds elsewhere."""
    started = time.monotonic()
    last_line_s = 0.0

    def tick(done: bool = False) -> None:
        nonlocal last_line_s
        elapsed = time.monotonic() - started
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K" if done else f"\r   waiting for {what}: {elapsed:.0f} s ")
            sys.stderr.flush()
        elif elapsed - last_line_s >= 10:
            last_line_s = elapsed
            sys.stderr.write(f"   waiting for {what}: {elapsed:.0f} s\n")

    try:
        yield tick
    finally:
        tick(done=sys.stderr.isatty())


def title(text: str) -> None:
    """What comes next, in a line of its own."""
    say(f"\n== {text}")


def say(text: str) -> None:
    if sys.stderr.isatty():  # the line of progress gives way
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
