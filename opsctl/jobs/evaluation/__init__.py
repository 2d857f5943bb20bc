"""Checkpoints held to EleutherAI's lm-eval: which are due, doing it once however often it is asked, what came of it."""
