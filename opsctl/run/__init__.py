"""A run: its file, its rendered scripts, plan, checkpoints, attempts, logs and state on disk."""
