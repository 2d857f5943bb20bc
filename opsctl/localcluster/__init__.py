"""A real Slurm on this machine, in one private folder."""

from opsctl.localcluster.lifecycle import LocalCluster, down, up
from opsctl.localcluster.spec import Spec, plain

__all__ = ["LocalCluster", "Spec", "down", "plain", "up"]
