"""Evidence and exclusions that two real accounts of one group share, and one outside of it does not."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes import exclusion
from opsctl.diagnosis.nodes.exclusion import Wanted, keep
from opsctl.diagnosis.nodes.exclusion_list import Place
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence, append_node_evidence
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import NodesTable
from tests.cluster.commands import open_folder
from tests.unit.diagnosis.nodes.slurm_in_memory import in_memory
from tests.users import as_user

GROUP = f"ocnodes{os.getpid()}"
WANTED = Wanted(partition=None, nodes=2)


def own_run(folder: Path, user: str) -> RunPaths:
    """Return a run of that user, whose watch has found n2 slow."""
    paths = RunPaths(folder / user)

    def write() -> None:
        paths.state.mkdir(parents=True, mode=0o700)
        append_node_evidence(paths, NodeEvidence(node="n2", kind="slow", at=now(), words="2x", confidence=0.9))

    as_user(user, write)
    return paths


def test_a_groups_accounts_add_to_one_list_and_nobody_else_reads_or_changes_it(
    unix_user: Callable[..., str],
) -> None:
    ann, ben, eve = unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP]), unix_user("eve")
    with open_folder() as folder:
        table = NodesTable(shared=str(folder / "nodes"), group=GROUP)
        place = Place(folder / "nodes", folder / "nodes")
        runs = {user: own_run(folder, user) for user in (ann, ben, eve)}

        def kept(user: str) -> tuple[str, ...]:
            return as_user(user, lambda: keep(runs[user], in_memory(), WANTED, table).excluded)

        assert [kept(user) for user in (ann, ben, ann)] == [(), ("n2",), ("n2",)]
        assert stat.S_IMODE(place.root.stat().st_mode) == 0o2770
        for what in (
            lambda: keep(runs[eve], in_memory(), WANTED, table).excluded,
            lambda: exclusion.add(place, ["n1"], "spite", now() + timedelta(days=1)),
        ):
            with pytest.raises((OpsctlError, OSError, RuntimeError), match=r"(?i)permission denied"):
                as_user(eve, what)
        as_user(ben, lambda: exclusion.add(place, ["n3"], "loud fans", now() + timedelta(days=1)))
        assert kept(ann) == ("n2", "n3")
        as_user(ann, lambda: exclusion.remove(place, ["n2", "n3"]))
        assert kept(ben) == ()
