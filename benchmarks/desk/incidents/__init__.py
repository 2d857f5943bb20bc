"""What goes wrong in simulated worlds: a module for each subject, each with its kinds and their lives."""
