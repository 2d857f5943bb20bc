"""A run's files on a hub: sending them, comparing what is there, and reading a run from there with no folder at hand.

`sync` plans and sends: a repository (`place`) is a destination of one run, as a bucket is for backups. What the ledger
does not know is found at the hub by checksum. `far_run` and `far_log` read without a clone.
"""
