"""Checkpoints on disk: folder names, manifest, partitions, history, and which one to load."""
