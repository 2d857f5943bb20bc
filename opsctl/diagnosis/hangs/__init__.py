"""Find out where the ranks of a training are, which of them the others wait for, and in what. Pure."""
