"""The incidents of simulated worlds: a module for each subject, each with its kinds and their lives."""
