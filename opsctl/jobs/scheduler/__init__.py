"""The pseudo-cron: jobs on a fixed grid of due times, where a cluster offers no cron.

A chain of ticks (`chain`) is carried by Slurm's queue, by scrontab or by a crontab (`crontabs`). A tick (`tick`) queues
its successors, claims the due times that have come (`grid`) and starts jobs (`job_runs`), which `executing` runs inside
their Slurm jobs. Claims are made once under a lock, so that each due time is covered exactly once.
"""
