"""What ran and how it ended."""
