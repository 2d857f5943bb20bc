"""Evaluations of checkpoints by EleutherAI's lm-eval.

`records` says which checkpoints are due and who evaluates them, `jobs` submits at most one job for each, `execute`
exports the weights and runs lm-eval in the Python of `harness`, `results` and `brief` report.
"""
