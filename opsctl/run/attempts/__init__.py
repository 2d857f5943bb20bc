"""The attempts of a run and their endings."""
