"""A run file for who has none yet: from a launch script of another trainer, from a few answers."""
