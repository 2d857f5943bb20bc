"""Safe files: opening without following links, atomic writes, sealed folders and reserves for a full disk."""
