"""What is written for others to read, and read back: files and log lines, without torch."""
