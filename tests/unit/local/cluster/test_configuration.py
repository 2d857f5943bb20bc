"""The configuration files, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.local.cluster import configuration
from opsctl.local.cluster.files import Places
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.ports import Ports
from opsctl.local.cluster.spec import Spec, plain

PLACES = Places(Path("/tmp/oc1"), Path("/tmp/oc1"))
DEBIAN_12, NEW = (22, 5), (25, 11)


def ports_for(spec: Spec) -> Ports:
    return Ports(20032, 20033, tuple(range(20034, 20034 + len(spec.node_names))))


def slurm_conf(spec: Spec, version: tuple[int, int] = DEBIAN_12) -> str:
    return configuration.slurm_conf(spec, PLACES, ports_for(spec), "host", "ann", Installation({}, version, (), ()))


GOLDEN = """\
ClusterName=local
SlurmctldHost=host(127.0.0.1)
SlurmUser=ann
SlurmdUser=ann
SlurmctldPort=20032

AuthType=auth/munge
AuthInfo=socket=/tmp/oc1/munge/munge.sock
CredType=cred/munge

StateSaveLocation=/tmp/oc1/state
SlurmdSpoolDir=/tmp/oc1/spool/%n
SlurmctldPidFile=/tmp/oc1/pid/slurmctld.pid
SlurmdPidFile=/tmp/oc1/pid/slurmd-%n.pid
SlurmctldLogFile=/tmp/oc1/log/slurmctld.log
SlurmdLogFile=/tmp/oc1/log/slurmd-%n.log

ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=0
PropagateResourceLimits=NONE

SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
EnforcePartLimits=ALL

SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
KillWait=5
CompleteWait=0
UnkillableStepTimeout=60
SlurmdTimeout=20
SlurmctldTimeout=30
MinJobAge=3600
FirstJobId=1001

NodeName=node[1-4] NodeAddr=127.0.0.1 Port=[20034-20037] CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 \
ThreadsPerCore=1 RealMemory=65536 Gres=gpu:local:2 State=UNKNOWN
PartitionName=main Nodes=node[1-4] MaxTime=INFINITE Default=YES State=UP
"""


def test_the_plain_clusters_slurm_conf() -> None:
    assert slurm_conf(plain()) == GOLDEN


def test_gpus_are_files_of_their_own_folder() -> None:
    assert (
        configuration.gres_conf(plain(), PLACES) == "NodeName=node[1-4] Name=gpu Type=local File=/tmp/oc1/gpu/[0-1]\n"
    )
    assert "File=/tmp/oc1/gpu/0\n" in configuration.gres_conf(plain(gpus=1), PLACES)
    assert configuration.gres_conf(plain(gpus=0), PLACES) == "\n"


def test_one_node_has_no_brackets() -> None:
    lines = slurm_conf(plain(nodes=1)).splitlines()
    assert lines[-2].startswith("NodeName=node1 NodeAddr=127.0.0.1 Port=20034 ")
    assert lines[-1].startswith("PartitionName=main Nodes=node1 ")


def test_accounting_enforces_and_names_munges_socket() -> None:
    text = slurm_conf(plain(accounting=True))
    assert "AccountingStorageEnforce=associations,limits,qos,safe\n" in text
    assert "AccountingStoragePass=/tmp/oc1/munge/munge.sock\n" in text
    assert "AccountingStoragePort=20033\n" in text
    assert "AccountingStorage" not in slurm_conf(plain())


def test_a_newer_slurm_signs_by_itself_and_keeps_out_of_run() -> None:
    text = slurm_conf(plain(), NEW)
    assert "CredType=auth/slurm\n" in text
    assert "AuthInfo=socket=/tmp/oc1/munge/munge.sock,disable_sack\n" in text
    assert configuration.cgroup_conf(NEW) == "CgroupPlugin=disabled\n"
    assert configuration.cgroup_conf(DEBIAN_12) == "CgroupPlugin=cgroup/v1\n"


def test_slurmdbd_conf_is_for_the_socket_of_this_cluster_alone() -> None:
    text = configuration.slurmdbd_conf(PLACES, ports_for(plain()), "host", "ann", Installation({}, DEBIAN_12, (), ()))
    assert "DbdPort=20033\n" in text
    assert "StorageUser=ann\n" in text
    assert "AuthInfo=socket=/tmp/oc1/munge/munge.sock\n" in text


@pytest.mark.parametrize(
    ("name", "slurm_name"),
    [
        ("local", "local"),
        ("My Cluster", "my-cluster"),
        ("it's $(x)-ü", "it-s-x"),
        ("---", "local"),
        ("x" * 60, "x" * 40),
    ],
)
def test_slurm_gets_a_name_it_takes(name: str, slurm_name: str) -> None:
    assert plain(name).slurm_name == slurm_name


def test_a_slurm_under_a_prefix_finds_its_plug_ins_where_it_lies_now() -> None:
    moved = Installation({}, NEW, (), (), plugin_folder="/opt/x/lib/slurm")
    for text in (
        configuration.slurm_conf(plain(), PLACES, ports_for(plain()), "host", "ann", moved),
        configuration.slurmdbd_conf(PLACES, ports_for(plain()), "host", "ann", moved),
    ):
        assert "PluginDir=/opt/x/lib/slurm" in text.splitlines()


def test_one_slurmd_answers_for_all_nodes_on_one_port_and_none_of_them_is_taken_for_lost() -> None:
    spec = plain(nodes=1000, one_slurmd=True)
    ports = Ports(20032, 20033, (20034,))
    text = configuration.slurm_conf(spec, PLACES, ports, "host", "ann", Installation({}, DEBIAN_12, (), ()))
    (nodes,) = (line for line in text.splitlines() if line.startswith("NodeName="))
    assert nodes.startswith("NodeName=node[0001-1000] ") and " Port=20034 " in nodes
    assert "SlurmdTimeout=0" in text.splitlines() and spec.slurmd_names == ("node0001",)
    assert spec.summary.startswith("1000 nodes x 2 GPUs, ")
