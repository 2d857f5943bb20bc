import pytest

from opsctl.jobs.control.refusals import way_out


@pytest.mark.parametrize(
    ("slurm_says", "to_change"),
    [
        ("Invalid account or account/partition combination specified", "[slurm] account"),
        ("Invalid partition name specified", "[slurm] partition"),
        ("Requested partition configuration not available now", "[slurm] partition"),
        ("Invalid qos specification", "[slurm] qos"),
        ("Invalid feature specification", "[slurm] constraint"),
        ("Requested reservation is invalid", "[slurm] reservation"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "[slurm] time"),
        ("Requested node configuration is not available", "[slurm] nodes, gpus_per_node and gpu_type"),
        ("Node count specification invalid", "[slurm] nodes"),
        ("Invalid generic resource (gres) specification", "[slurm] gpus_per_node and gpu_type"),
        ("Invalid node name specified", "--exclude"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "nodes and time"),
        ("Job dependency problem", "--after"),
        ("Invalid job array specification", "--array"),
        ("job 67108876 of a federation", "cluster"),
        ("Something new", "[slurm]"),
    ],
)
def test_slurms_words_say_what_to_change(slurm_says: str, to_change: str) -> None:
    assert to_change in way_out(f"Slurm: {slurm_says}")
