"""Faults really caused in small trainings on a local Slurm, and what they leave on disk, for the labelled corpus."""
