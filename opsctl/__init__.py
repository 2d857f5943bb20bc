"""opsctl runs months-long language-model trainings on shared SLURM clusters."""

__version__ = "0.1.0"
