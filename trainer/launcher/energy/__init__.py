"""Measuring the energy of a training: one tracker per node, in a process of its own."""
