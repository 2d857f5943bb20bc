"""One snapshot of a run, the checks that look at it, and what gathers it."""
