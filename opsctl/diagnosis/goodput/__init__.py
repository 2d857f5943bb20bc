"""Account for a run's time: training, and what took the rest. Pure."""
