"""What is missing for this user, run and cluster, and the command that fixes it."""
