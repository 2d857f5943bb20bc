"""Files that an attempt leaves in its folder, written by the trainer and read by opsctl."""
