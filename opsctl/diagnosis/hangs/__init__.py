"""Where the ranks of a training are, which of them the others wait for, and what it misses. Pure."""
