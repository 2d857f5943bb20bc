"""Saving and loading of whole checkpoints."""
