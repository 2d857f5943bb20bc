"""Create the folder of a local cluster: configuration files, keys, and files in place of GPUs."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

from opsctl.local.cluster.files import Places, link_root
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.ports import Ports
from opsctl.local.cluster.spec import NodeGroup, Spec


def slurm_conf(spec: Spec, places: Places, ports: Ports, host: str, user: str, installation: Installation) -> str:
    """Return slurm.conf for daemons of `user` on `host` (its short name), all on 127.0.0.1."""
    version = installation.version
    lines = [
        f"ClusterName={spec.slurm_name}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        f"SlurmctldPort={ports.slurmctld}",
        "",
        "AuthType=auth/munge",
        f"AuthInfo={authentication_info(places, version)}",
        f"CredType={'auth/slurm' if has_own_signature(version) else 'cred/munge'}",
        *_plugin_folder(installation),
        "",
        f"StateSaveLocation={places.state}",
        f"SlurmdSpoolDir={places.spool}/%n",
        f"SlurmctldPidFile={places.pids}/slurmctld.pid",
        f"SlurmdPidFile={places.pids}/slurmd-%n.pid",
        f"SlurmctldLogFile={places.logs}/slurmctld.log",
        f"SlurmdLogFile={places.logs}/slurmd-%n.log",
        "",
        # No cgroups and no CPU binding: both need root, and all nodes are the same machine.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=0",
        "PropagateResourceLimits=NONE",
        "",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "GresTypes=gpu",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "MailProg=/bin/true",
        "EnforcePartLimits=ALL",
        "",
        # Users and tests wait for each of these.
        "SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0",
        "KillWait=5",
        "CompleteWait=0",
        "UnkillableStepTimeout=60",
        # If one slurmd answers for all nodes, Slurm would consider all but one lost.
        f"SlurmdTimeout={0 if spec.one_slurmd else spec.slurmd_timeout_s}",
        *(["TreeWidth=50"] if spec.one_slurmd else []),
        "SlurmctldTimeout=30",
        "MinJobAge=3600",
        f"FirstJobId={ports.first_job_id}",
        "",
    ]
    if spec.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={ports.slurmdbd}",
            # Without the socket's path here, every call to slurmdbd fails with "Protocol authentication error".
            f"AccountingStoragePass={places.munge_socket}",
            "AccountingStorageEnforce=associations,limits,qos,safe",
            "AccountingStorageTRES=gres/gpu",
            "",
        ]
    lines += spec.extra_slurm_conf
    node_ports = iter(ports.slurmds)
    for group in spec.node_groups:
        own = list(ports.slurmds) if spec.one_slurmd else [next(node_ports) for _ in group.names]
        lines.append(_node_line(group, own))
    for partition in spec.partitions:
        words = [
            f"PartitionName={partition.name}",
            f"Nodes={','.join(partition.nodes)}",
            f"MaxTime={partition.max_time}",
        ]
        words += [f"Default={'YES' if partition.is_default else 'NO'}", "State=UP"]
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _plugin_folder(installation: Installation) -> list[str]:
    return [f"PluginDir={installation.plugin_folder}"] if installation.plugin_folder else []


def has_own_signature(version: tuple[int, int]) -> bool:
    """Return True if slurmctld signs job credentials with Slurm's own key instead of munge.

    With one munged for all nodes, the second node's check of a credential looks like a replay, unless Slurm was
    configured with --enable-multiple-slurmd, as on Debian. Slurm's own signature, from 23.11 on, has no such check.
    """
    return version >= (23, 11)


def authentication_info(places: Places, version: tuple[int, int]) -> str:
    """Return munge's socket, without Slurm's own socket under /run, which needs root and serves one cluster."""
    return f"socket={places.munge_socket}{',disable_sack' if has_own_signature(version) else ''}"


def _node_line(group: NodeGroup, ports: list[int]) -> str:
    # With only CPUs, and no sockets and cores, the nodes become INVAL.
    words = [
        f"NodeName={group.folded}",
        "NodeAddr=127.0.0.1",
        f"Port=[{ports[0]}-{ports[-1]}]" if len(ports) > 1 else f"Port={ports[0]}",
        f"CPUs={group.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={group.cpus} ThreadsPerCore=1",
        f"RealMemory={group.memory_mib}",
    ]
    if group.gpus:
        words.append(f"Gres=gpu:{group.gpu_type}:{group.gpus}")
    if group.features:
        words.append(f"Feature={','.join(group.features)}")
    return " ".join([*words, "State=UNKNOWN"])


def gres_conf(spec: Spec, places: Places) -> str:
    """Return gres.conf, with plain files as GPUs: a count without files makes nodes INVAL."""
    lines = []
    for group in spec.node_groups:
        if group.gpus:
            files = f"{places.gpus}/[0-{group.gpus - 1}]" if group.gpus > 1 else f"{places.gpus}/0"
            lines.append(f"NodeName={group.folded} Name=gpu Type={group.gpu_type} File={files}")
    return "\n".join(lines) + "\n"


def cgroup_conf(version: tuple[int, int]) -> str:
    """Return the setting without control groups, which need root: 23.02 has one, older releases take cgroup/v1."""
    return f"CgroupPlugin={'disabled' if version >= (23, 2) else 'cgroup/v1'}\n"


def slurmdbd_conf(places: Places, ports: Ports, host: str, user: str, installation: Installation) -> str:
    """Return slurmdbd.conf. `MYSQL_UNIX_PORT` names the database's socket, which its Unix user owns."""
    return "\n".join(
        [
            f"DbdHost={host}",
            "DbdAddr=127.0.0.1",
            f"DbdPort={ports.slurmdbd}",
            f"SlurmUser={user}",
            "AuthType=auth/munge",
            f"AuthInfo={authentication_info(places, installation.version)}",
            *_plugin_folder(installation),
            f"LogFile={places.logs}/slurmdbd.log",
            f"PidFile={places.pids}/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            f"StorageUser={user}",
            "StorageLoc=slurm_acct_db",
            "",
        ]
    )


def lay_out(spec: Spec, places: Places, ports: Ports, installation: Installation, user: str) -> None:
    """Create all files that the daemons need. Others can reach the socket, but only the owner the secrets."""
    link_root(places)
    with contextlib.suppress(PermissionError):
        places.folder.chmod(0o755)
    modes = {places.munge: 0o711, places.state: 0o700}
    for folder in (places.munge, places.state, places.spool, places.logs, places.pids, places.gpus):
        folder.mkdir(exist_ok=True)
        folder.chmod(modes.get(folder, 0o755))
    for name in spec.node_names:
        (places.spool / name).mkdir(exist_ok=True)
    for number in range(spec.gpus_per_node):
        (places.gpus / str(number)).touch()
    _write_configuration(spec, places, ports, installation, user)
    for key in (places.munge / "munge.key", places.root / "slurm.key"):
        if not key.exists():
            _write(key, os.urandom(1024), 0o600)


def forget_jobs(places: Places) -> None:
    """Remove the files of an earlier cluster of another shape: slurmctld refuses another cluster's state."""
    for name in ("state", "spool", "db", "log", "pid"):
        shutil.rmtree(places.folder / name, ignore_errors=True)


def _write_configuration(spec: Spec, places: Places, ports: Ports, installation: Installation, user: str) -> None:
    host = socket.gethostname().split(".")[0]
    texts = {
        "slurm.conf": slurm_conf(spec, places, ports, host, user, installation),
        "gres.conf": gres_conf(spec, places),
        "cgroup.conf": cgroup_conf(installation.version),
        "slurmdbd.conf": slurmdbd_conf(places, ports, host, user, installation) if spec.accounting else None,
    }
    for name, text in texts.items():
        if text is None:
            (places.root / name).unlink(missing_ok=True)
        else:
            # slurmdbd refuses a file that others can read.
            _write(places.root / name, text.encode(), 0o600 if name == "slurmdbd.conf" else 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
