"""Copies of a run's checkpoints, records and data sets at other places, proven there, and their restore.

`schedule` (pure) decides what a destination gets. `checkpoints`, `run_files` and `data_copies` send it: the manifest,
index or note goes last. `destination` and `remote_layout` know the layout there. The ledger (`run.checkpoints.backups`)
names a save by its manifest's checksum; what it does not know is found at the destination and proven instead of sent.
`verify` reads copies again, and proves for prune the copies that it relies on. `restore_checkpoint` and `restore_run`
put together what they fetch under another name, and rename it when it is whole.
"""
