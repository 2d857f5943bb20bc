"""Where a run's list and evidence are: its own state, or the folder that the profile names for several runs."""

from __future__ import annotations

from pathlib import Path

from opsctl.core.files.state_files import append_state
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.exclusion_list import Place, own_place, read_evidence_of
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence
from opsctl.diagnosis.nodes.policy import AHEAD
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import NodesTable
from opsctl.run.state.group_folder import Kind, open_to

SHARED = Kind("a shared folder of node evidence", "[nodes] shared", "the profile's [nodes]", "opsctl exclude list")


def place_of(paths: RunPaths, table: NodesTable) -> Place:
    """The list that counts for the run. A shared folder is made where it is not there yet.

    Raises RunFileError for a group that cannot be, OpsctlError and OSError where the folder cannot be had.
    """
    if table.shared is None:
        return own_place(paths)
    folder = Path(table.shared).expanduser()
    if not folder.is_dir():
        open_to(folder, table.group, SHARED)
    return Place(folder, folder)


def evidence_for(paths: RunPaths, place: Place) -> list[NodeEvidence]:
    """All that is known at `place`; what the run itself has seen is put there first where several share it.

    What is dated more than a day ahead is passed over. A folder that cannot be written takes nothing, and the run goes
    by its own lines too. Raises OSError where either cannot be read.
    """
    latest, own = now() + AHEAD, read_evidence_of(own_place(paths))
    if place == own_place(paths):
        return [one for one in own if one.at <= latest]
    known = read_evidence_of(place)
    there = set(known)
    missing = [one for one in dict.fromkeys(own) if one not in there]
    for one in missing:
        try:
            append_state(place.root, place.evidence, one)
        except OSError:
            break
    return [one for one in (*known, *missing) if one.at <= latest]
