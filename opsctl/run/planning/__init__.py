"""What a training comes to: sizes, memory, schedule, days. Pure."""
