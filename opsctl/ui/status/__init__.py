"""The status output: overview, screen, JSON, queue."""
