"""A run's files on a hub: sending them, comparing what is there, and reading a run from there with no folder at hand.

`plan` (pure but for listing folders) compares the run's files with the `ledger`, which only saves questions: what it
does not know is found at the hub by checksum. `sync` sends through `upload` and `repository`, on top of the head that
was looked at. A repository is one run's (`ownership`). `far_run` and `far_log` read without a clone.
"""
