"""The checks of this user, run and cluster, with the command that fixes each problem."""
