"""Lines of the training log, written and read back."""
