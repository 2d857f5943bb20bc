"""`opsctl demo`: the main job through all of opsctl, on a real Slurm on this machine, as a person would type it."""
