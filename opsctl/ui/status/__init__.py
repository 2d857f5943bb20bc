"""What people look at: overview, screen, JSON, queue."""
