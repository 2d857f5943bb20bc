"""Operations of long language-model trainings on a SLURM cluster shared with others."""
