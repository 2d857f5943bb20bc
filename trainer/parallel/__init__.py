"""Process groups and tensor-parallel building blocks."""
