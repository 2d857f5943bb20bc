"""`python -m opsctl` is the same as the console script."""

from opsctl.cli import main

main()
