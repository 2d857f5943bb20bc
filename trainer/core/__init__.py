"""Basic parts of the trainer: printing, small files, moved folders, dtypes, imports of torch."""
