"""Find what ended a job and on which node, and account for time and energy."""
