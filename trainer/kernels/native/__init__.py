"""What is compiled: the sources, their compilers, the cache of what came of them, and loading that. No torch here.

A training compiles nothing: `python -m trainer.kernels.native build` does it before. A missing library is reported
with the reason.
"""
