"""The training log: parse its lines into records, measure, follow and index it."""
