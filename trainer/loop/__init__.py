"""One iteration after another: train, evaluate, log, stop."""
