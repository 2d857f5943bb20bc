"""The training log: its lines as records, what they show, following it as it grows."""
