"""Families of operations by `csrc/cpu`, on a CPU; the library is handed in, loaded."""
