"""Copies of a run's files and checkpoints at its destinations: folders, buckets and repositories of a hub.

`plan` decides what a destination should have and has not (pure but for listing folders), `checkpoint` sends one
checkpoint after the other, its manifest last, and records each in the ledger (`run.checkpoints.backups`).
"""
