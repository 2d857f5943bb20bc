"""Where a run's time has gone: what trained, and what did not, by what took it. Pure."""
