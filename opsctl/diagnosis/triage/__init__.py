"""What killed it: lines of logs and what Slurm says to one verdict, by a table of rules."""
