"""Operations of long language-model trainings on a SLURM cluster shared with others."""

__version__ = "0.1.0"
