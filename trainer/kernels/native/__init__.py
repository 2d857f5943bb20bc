"""Compiled code: the sources, their compilers, the cache of results, and loading them. No torch here.

A training compiles nothing: `python -m trainer.kernels.native build` does it before. A missing library is reported
with the reason.
"""
