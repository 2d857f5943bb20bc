"""A real Slurm on this machine, in one private folder."""

from opsctl.local.cluster.lifecycle import LocalCluster, down, up
from opsctl.local.cluster.spec import Spec, plain

__all__ = ["LocalCluster", "Spec", "down", "plain", "up"]
