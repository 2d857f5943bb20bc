"""Causes real faults in small trainings on a cluster of its own, and keeps what each leaves as a case of the corpus.

    python -m tests.cluster.capture_faults OUT [NAME...]

No part of the tests: about half a minute a fault, as root (it mounts, resets connections and kills). A case that is
there already is left as it is.
"""

from __future__ import annotations

import argparse
import getpass
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import find_installation
from opsctl.local.cluster.spec import NodeGroup, Partition, Spec
from tests.cluster.commands import open_folder
from tests.cluster.conftest import RunningCluster, guarded_folder, mend, wait_until
from tests.cluster.faults import own, plain
from tests.cluster.faults.copied import copy_out
from tests.cluster.faults.fault import Fault, Stage, mounted, remove
from tests.cluster.trainings import environment_script

_NODES = NodeGroup("r07n", 4, 2, "a100", cpus=32, memory_mib=65536, digits=2)
SPEC = Spec(
    name="capture",
    shape="4 nodes x 2 GPUs",
    node_groups=(_NODES,),
    partitions=(Partition("main", (_NODES.folded,), is_default=True),),
    accounting=True,
    slurmd_timeout_s=12,
    extra_slurm_conf=(
        "PreemptType=preempt/partition_prio",
        "TaskPlugin=task/cgroup",
        "JobAcctGatherType=jobacct_gather/cgroup",
        "SelectTypeParameters=CR_CPU_Memory",
        "DefMemPerNode=4000",  # MiB, to which the kernel holds a job
        "PreemptMode=CANCEL",
        f"PartitionName=urgent Nodes={_NODES.folded} PriorityTier=10 MaxTime=INFINITE State=UP",
    ),
)
#: More room than four nodes' trainings need, and soon full.
_CHECKPOINTS = "64m"


def main() -> int:
    """Cause them one after the other; 0 when all that were asked for are there."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    known = {fault.name: fault for fault in (*own.FAULTS, *plain.FAULTS)}
    if unknown := sorted(set(given.names) - set(known)):
        print(f"no faults of these names: {', '.join(unknown)}", file=sys.stderr)
    faults = [known[name] for name in given.names or known if name in known]
    missed = []
    with guarded_folder() as folder:
        up = lifecycle.up(SPEC, folder)
        cluster = RunningCluster(up.folder, up.cluster, find_installation(None, True))
        with (cluster.places.folder / "cgroup.conf").open("a") as file:
            file.write("ConstrainRAMSpace=yes\n")
        cluster.run("scontrol", "reconfigure")
        for fault in faults:
            if (given.out / fault.name).exists():
                continue
            began = time.monotonic()
            mend(cluster, SPEC)
            try:
                _capture(fault, cluster, given.out.absolute())
                said = "kept"
            except BaseException as error:  # pytest's failures are none of Exception
                if isinstance(error, KeyboardInterrupt):
                    raise
                missed.append(fault.name)
                shutil.rmtree(given.out / fault.name, ignore_errors=True)
                said = f"missed: {error!r}"[:800]
            print(f"{fault.name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    return 1 if missed else 0


def _capture(fault: Fault, cluster: RunningCluster, out: Path) -> None:
    with open_folder() as folder:
        stage = Stage(cluster, folder)
        try:
            if fault.script:
                _plain(fault, stage)
            else:
                _own(fault, stage)
            stage.wait_until_over()
            time.sleep(1.5)  # slurmdbd is told with a delay
            copy_out(fault, stage, out / fault.name)
        finally:
            for signal in (["--full", "--signal=KILL"], []):
                cluster.run("scancel", *signal, f"--user={getpass.getuser()}", check=False)
            time.sleep(2)  # the next fault waits for the nodes; a lost one comes back late
            remove(folder)


def _own(fault: Fault, stage: Stage) -> None:
    training = stage.training
    _write_hooks(stage.hooks)
    fault.before(stage)
    environment = environment_script(stage.folder, fault.environment)
    with mounted(training.paths.checkpoints, _CHECKPOINTS):
        changes: dict[str, Any] = {
            "log_interval": "10",
            "save_interval": "40",
            "environment": environment,
            **fault.changes,
        }
        training.write(**changes)
        with (stage.folder / "run.toml").open("a") as file:
            file.write(fault.tables)
        chain = training.submit(fault.tasks)
        wait_until(lambda: training.paths.attempts.exists() and training.recorded(), 60, "the attempt")
        first = training.recorded()[0]
        stage.job_id, stage.nodes = int(first["job_id"]), list(first["nodes"])
        if "hooks" not in fault.environment and not fault.environment.startswith("cd") and not _starts_badly(fault):
            training.wait_for_iteration(20)
        fault.do(stage)
        stage.wait_until_over()
        cluster_attempt = training.attempts()
        stage.nodes = next(list(one["nodes"]) for one in cluster_attempt if one["job_id"] == stage.job_id)
        stage.cluster.run("scancel", str(chain), check=False)


def _starts_badly(fault: Fault) -> bool:
    return bool(fault.environment) or fault.name == "own-nan"


def _plain(fault: Fault, stage: Stage) -> None:
    shutil.copy(Path(plain.__file__).with_name("plain_training.py"), stage.folder / "train.py")
    (stage.folder / "checkpoints").mkdir()
    fault.before(stage)
    options = [f"--nodes={fault.nodes}", "--ntasks-per-node=1", f"--chdir={stage.folder}", "--time=20"]
    stage.job_id = stage.cluster.sbatch(fault.script, *options, f"--output={stage.folder}/job.out", *fault.options)
    stage.cluster.wait_for_state(stage.job_id, "RUNNING", "FAILED", "COMPLETED")
    nodes = stage.cluster.run("squeue", "-h", "-t", "all", "-j", str(stage.job_id), "-o", "%N").stdout.strip()
    stage.nodes = stage.cluster.run("scontrol", "show", "hostnames", nodes).stdout.split()
    stage.culprit = stage.nodes[0]
    fault.do(stage)


def _write_hooks(hooks: Path) -> None:
    hooks.mkdir()
    shutil.copy(Path(own.__file__).with_name("hooks.py"), hooks / "token_filter.py")
    loads = 'import sys\n\nif "trainer.launch" in sys.orig_argv:\n    import token_filter\n'
    (hooks / "sitecustomize.py").write_text(loads)


if __name__ == "__main__":
    sys.exit(main())
