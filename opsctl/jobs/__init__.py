"""All jobs that are submitted to Slurm: chains, the runner inside them, the scheduler, background jobs, evaluation."""
