"""What is compiled: the sources, their compilers, the cache of what came of them, and loading that. No torch here.

Nothing is compiled in a training: `python -m trainer.native build` does it ahead, and whoever asks for what is not
there gets a sentence why.
"""
