"""The checks, one small function each, by what they are about."""
