"""`opsctl demo`: run the main commands of opsctl on a real Slurm on this machine, as a user would type them."""
