"""The demo: its steps in order, on a cluster that is ended afterwards."""

from __future__ import annotations

import math
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import locked
from opsctl.local.cluster.lifecycle import down
from opsctl.local.demo.stage import CLUSTER, DemoFailed, Stage, clear_the_stage, cluster_folder, show
from opsctl.run.state.chosen_cluster import local_clusters_folder
from trainer.formats.data.vocabulary_files import read_notes

VOCAB_SIZE = 1024
#: Folders of the standard library that contain tests, or not its own sources.
LEFT_OUT = ("test", "tests", "idlelib", "*-packages")


class Demo(Stage):
    """The steps of the demo, one method each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.entropy_nats = math.inf
        self.chain = 0

    def play(self) -> None:
        """Run all steps. Raises DemoFailed at the first step that fails."""
        self.bring_up_the_cluster()
        self.prepare_the_corpus()
        self.plan()
        self.submit()
        self.watch_the_loss_fall()
        self.try_a_second_chain()
        self.stop_it_through_the_kill_switch()
        self.resume()
        self.make_the_page()

    def bring_up_the_cluster(self) -> None:
        """Start a cluster named CLUSTER, next to the user's others."""
        show("\n== A real Slurm on this machine: 4 nodes with 2 GPUs each for Slurm; the trainer uses the CPU")
        self.opsctl("local-cluster", "up", "--name", CLUSTER, "--nodes", "4", "--gpus", "2", where=self.folder)

    def prepare_the_corpus(self) -> None:
        """Create the run folder, the tokenized corpus in its data/, and `entropy_nats` of the corpus."""
        show("\n== A run folder, and a corpus: the Python standard library's own sources, one document per file")
        self.opsctl("init", "demo", where=self.folder)
        library = sysconfig.get_path("stdlib")
        excludes = [word for name in LEFT_OUT for word in ("--exclude", name)]
        corpus = ("--output-prefix", "data/corpus", "--vocab-size", str(VOCAB_SIZE), "--include", "*.py")
        self.opsctl("data", "prepare", library, *corpus, *excludes)
        prefix = next(iter((self.run_folder / "data").glob("*.idx"))).with_suffix("")
        noted = read_notes(prefix)
        if noted is None or noted.entropy_nats is None:
            raise DemoFailed(f"no statistics found next to {prefix}")
        self.entropy_nats = noted.entropy_nats
        show(f"   an untrained model has a loss of ln({VOCAB_SIZE}) = {math.log(VOCAB_SIZE):.2f};")
        show(
            f"   one that only knows the frequency of each token: {self.entropy_nats:.2f}, the corpus's unigram entropy"
        )

    def plan(self) -> None:
        """Show the plan of the run file from `opsctl init demo`."""
        show("\n== The plan")
        self.opsctl("plan")

    def submit(self) -> None:
        """Submit, and set `chain` to the array's job id: the last line of `opsctl submit`."""
        show("\n== A chain of three array tasks, one at a time: tensor 2 x pipeline 2 x data 2 over four nodes")
        self.chain = int(self.opsctl("submit", "--array", "1-3%1", "--cluster", CLUSTER).strip().splitlines()[-1])

    def watch_the_loss_fall(self) -> None:
        """Wait up to 300 s until the last five losses are below `entropy_nats`."""
        show("\n== The loss falls from about ln(vocabulary) to below the unigram entropy")
        below = 0
        shown = 0

        def deep_enough() -> bool:
            nonlocal below, shown
            lines = self.log_lines()
            for line in lines:
                if line.iteration > shown and (line.iteration <= 3 or line.iteration % 10 == 0):
                    show(f"   iteration {line.iteration:4d}   loss {line.loss:.3f}")
                shown = max(shown, line.iteration)
            below = sum(line.loss < self.entropy_nats for line in lines[-5:])
            return below == 5

        self.wait_for(deep_enough, 300, "the loss to fall below the unigram entropy")
        show(f"   below {self.entropy_nats:.2f} for five iterations in a row")

    def try_a_second_chain(self) -> None:
        """Expect exit code 1 next to the live chain, and 0 behind it."""
        show("\n== A second chain next to a live one is refused; behind it, it is accepted")
        self.opsctl("submit", "--array", "1-2%1", expect=1)
        self.opsctl("submit", "--array", "1-2%1", "--after", "auto")
        self.opsctl("status")
        self.opsctl("watch", "training")

    def stop_it_through_the_kill_switch(self) -> None:
        """Release the tasks one by one: 1 leaves when the kill switch appears, 2 when it finds it. 3 is held."""
        show("\n== The kill switch: the running task saves and leaves, a queued one finds it and leaves at once")
        self.slurm("scontrol", "hold", f"{self.chain}_2", f"{self.chain}_3")
        self.opsctl("kill-switch", "trigger", "--reason", "showing how")
        self.wait_for(lambda: self.ended(1), 120, "task 1 to save and leave")
        self.slurm("scontrol", "release", f"{self.chain}_2")
        self.wait_for(lambda: self.ended(2), 120, "task 2 to find the switch and leave")
        self.opsctl("attempts")

    def resume(self) -> None:
        """Raise DemoFailed unless task 3 resumes right after the saved iteration and logs no iteration twice."""
        show("\n== The kill switch is deactivated; the next task resumes from the saved iteration")
        saved = max((attempt.get("iteration_at_end") or 0 for attempt in self.attempts()), default=0)
        self.opsctl("kill-switch", "deactivate")
        self.slurm("scontrol", "release", f"{self.chain}_3")
        self.wait_for(
            lambda: any(line.iteration > saved + 2 for line in self.log_lines()), 180, f"iteration {saved + 3}"
        )
        after = [line for line in self.log_lines() if line.iteration > saved]
        if after[0].iteration != saved + 1 or len({line.iteration for line in after}) != len(after):
            raise DemoFailed(f"the training was saved at iteration {saved} and resumed at {after[0].iteration}")
        show(f"   saved at iteration {saved}, resumed with iteration {after[0].iteration}, loss {after[0].loss:.3f}")
        self.opsctl("status")

    def make_the_page(self) -> None:
        """Create the run's page in the output folder."""
        show("\n== The run's page: curves, events, and use of time")
        self.opsctl("report")


def play(folder: Path, keep: bool) -> int:
    """Run the demo below `folder`. Return 0, 1 for a failed step, 130. Raises OpsctlError if another demo runs."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal ends it like Ctrl-C
        signal.signal(number, signal.default_int_handler)
    clusters = local_clusters_folder()
    clusters.mkdir(parents=True, exist_ok=True)
    with locked(clusters, clusters / f"{CLUSTER}.lock", 0, "start a second demo"):
        return _demo((folder / time.strftime("%Y%m%d-%H%M%S")).resolve(), keep)


def _demo(folder: Path, keep: bool) -> int:
    """Run it, then end the cluster. With `keep` it stays up, unless the demo was interrupted."""
    started = time.monotonic()
    stays_up = False
    try:
        folder.mkdir(parents=True)
        clear_the_stage()
        show("This takes about two minutes. Each $ line is a command that a user would type.")
        Demo(folder).play()
        code, stays_up = 0, keep
        show(f"\nDone in {time.monotonic() - started:.0f} s. The run is in {folder / 'demo'};")
        show("its page is output/report/index.html, for any browser; logs/ and checkpoints/ are under output/ too.")
    except (DemoFailed, OpsctlError, subprocess.SubprocessError) as failure:
        code, stays_up = 1, keep
        show(f"\nthe demo stopped: {failure}")
        show(f"its files: {folder}")
    except KeyboardInterrupt:
        code = 130
        show("\ninterrupted: ending the cluster")
    finally:
        if not stays_up:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            down(cluster_folder())
    if stays_up:
        show_next_commands(folder)
    elif code == 0:
        show("The cluster is down. To keep it up: opsctl demo --keep (make demo KEEP=1)")
        show(f"To see the next steps: {_activation()}opsctl")
    return code


def show_next_commands(folder: Path) -> None:
    """Show commands for a cluster that stays up."""
    show("The cluster is up. From the run's folder:")
    for line in (
        f"{_activation()}cd {shlex.quote(str(folder / 'demo'))}",
        "opsctl status",
        "opsctl attempts",
        "opsctl logs -n 20",
        "opsctl queue",
        f"opsctl local-cluster exec --name {CLUSTER} -- sinfo",
        f"opsctl local-cluster down --name {CLUSTER}      # when you are done",
    ):
        show(f"  {line}")


def _activation() -> str:
    """Return the commands in front of `opsctl` that activate this environment; empty if PATH has it."""
    found, activate = shutil.which("opsctl"), Path(sys.prefix) / "bin" / "activate"
    if found is not None and Path(found).resolve().parent == Path(sys.prefix).resolve() / "bin":
        return ""
    return f". {shlex.quote(str(activate))}; " if activate.is_file() else ""
