"""Background commands: long commands that Slurm jobs of their own carry out, one after the other past the time limit.

`records` keeps one folder per command in the account's state folder. `submission` submits and settles its jobs,
`execute` runs the command inside a job, `listing` prints.
"""
