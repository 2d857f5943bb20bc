"""Programs around the ranks of a node: launching, sampling, stacks, energy, node tests."""
