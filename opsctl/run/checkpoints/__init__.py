"""What checkpoints there are, how far they have come, and whether a training may go on from one."""
