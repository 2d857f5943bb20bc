"""Value types, one client, its backends."""
