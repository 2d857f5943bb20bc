"""Long commands as Slurm jobs of their own: sent, at work, gone on with past their limit, looked at."""
