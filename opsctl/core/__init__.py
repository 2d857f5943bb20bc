"""Basic parts that all packages use: errors, files, processes, output, times, units and directory walks."""
