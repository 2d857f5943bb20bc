"""The poller that needs no crond: a fixed grid of ticks, carried by Slurm, scrontab or a crontab."""
