"""Training programs that do not know opsctl, for the tests of `[program]`."""
