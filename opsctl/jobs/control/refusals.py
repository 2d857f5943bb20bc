"""What to change when Slurm refuses a job, by the words it uses. Pure."""

from __future__ import annotations

#: (part of Slurm's message, advice); the first that fits counts, so the longer ones come before the words in them.
_ADVICE = (
    ("federation", "submit on a cluster that is in none, or ask the site to take this one out"),
    (
        "violates accounting",
        "ask for less in [slurm] nodes and time, or another qos (sacctmgr show qos shows the limits)",
    ),
    ("invalid account", "correct [slurm] account in the run file (sacctmgr show associations user=$USER lists yours)"),
    ("qos", "correct [slurm] qos in the run file (sacctmgr show qos lists them)"),
    ("partition", "correct [slurm] partition in the run file (sinfo -s lists them)"),
    ("feature", "correct [slurm] constraint in the run file (sinfo -o '%P %f' lists them)"),
    ("reservation", "correct [slurm] reservation in the run file (scontrol show reservation lists them)"),
    ("time limit", "correct [slurm] time in the run file (sinfo -s shows each partition's limit)"),
    ("node configuration", "correct [slurm] nodes, gpus_per_node and gpu_type in the run file (sinfo -o '%P %D %G')"),
    ("node count", "correct [slurm] nodes in the run file, or --nodes"),
    ("gres", "correct [slurm] gpus_per_node and gpu_type in the run file (sinfo -o '%P %G')"),
    ("tres", "correct [slurm] gpus_per_node and gpu_type in the run file (sinfo -o '%P %G')"),
    ("node name", "correct [slurm] exclude in the run file, or --exclude"),
    ("dependency", "correct --after"),
    ("begin", "correct --begin"),
    ("array", "correct --array, or [array] tasks in the run file"),
    ("account", "correct [slurm] account in the run file (sacctmgr show associations user=$USER lists yours)"),
)


def way_out(refusal: str) -> str:
    """What to type or edit, given Slurm's words."""
    text = refusal.lower()
    return next((advice for part, advice in _ADVICE if part in text), "correct the run file's [slurm]")
