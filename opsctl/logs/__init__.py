"""The training log: parsing, following."""
