"""A real Slurm on this machine, and the demo that runs on it."""
