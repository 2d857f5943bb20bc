"""The checkpoints of a run: inventory, retention, backups, rollbacks, and whether a training can resume from one."""
