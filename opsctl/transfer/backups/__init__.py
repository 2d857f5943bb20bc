"""Copies of a run's checkpoints, records and data sets at other places, proven there, and their restore.

`destination` is one place of a run's copies and sends checkpoints, `run_files` and `data_copies` send the rest: the
manifest, index or note goes last. What the ledger does not know is found at the destination and proven instead of sent.
`verify` reads copies again, and proves for prune the copies that it relies on. `restore_checkpoint` and `restore_run`
put together what they fetch under another name, and rename it when it is whole.
"""
