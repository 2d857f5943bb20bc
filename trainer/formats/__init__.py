"""Files and log lines that are written and read back, without torch."""
