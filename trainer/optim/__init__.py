"""Parameter groups and schedules."""
