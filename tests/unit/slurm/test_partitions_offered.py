"""Test what sinfo lists as offers."""

from __future__ import annotations

from pathlib import Path

from opsctl.slurm.client import Deadline
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.partitions_offered import Offer, offers, parse_offers
from opsctl.slurm.rows import FIELD_END, ROW_END


def table(*rows: tuple[str, ...]) -> str:
    return "".join(FIELD_END.join(row) + ROW_END + "\n" for row in rows)


def test_partitions_with_gpus_come_first_and_states_of_their_nodes_count_together() -> None:
    text = table(
        ("cpu*", "1-00:00:00", "90", "64", "(null)"),
        ("small", "2:00:00", "4", "32", "gpu:4"),
        ("big", "infinite", "10", "96", "gpu:nvidia_h100_80gb:8(S:0-1),shm:1"),
        ("big", "infinite", "2", "96", "gpu:nvidia_h100_80gb:8(S:0-1),shm:1"),
        ("cut", "1:00:00", "n/a", "1", ""),
    )
    assert parse_offers(text) == [
        Offer("big", False, 12, 96, 8, "nvidia_h100_80gb", None),
        Offer("small", False, 4, 32, 4, None, "2:00:00"),
        Offer("cpu", True, 90, 64, 0, None, "1-00:00:00"),
    ]


def test_of_a_federation_only_the_partitions_of_this_cluster_are_offered(tmp_path: Path) -> None:
    own, others = table(("gpu*", "1:00:00", "4", "8", "(null)")), table(("far", "1:00:00", "9", "8", "(null)"))
    (tmp_path / "own").write_text(own)
    (tmp_path / "all").write_text(own + others)
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(
        f'#!/bin/bash\ncase " $* " in *" --local "*) cat {tmp_path}/own ;; *) cat {tmp_path}/all ;; esac\n'
    )
    sinfo.chmod(0o755)
    assert [one.partition for one in offers(Cluster(bin_folders=(str(tmp_path),)), Deadline(8.0))] == ["gpu"]
