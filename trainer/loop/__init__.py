"""One iteration after another, and what is done after each: log, curves, evaluation, save; when to leave."""
