"""Slurm: values (`types`, `nodes`, `states`), one client protocol with two backends, one cache of answers.

`backends.client_for` makes a client. `commands` runs Slurm's commands through `process`, which separates "refused" from
"did not answer"; `rows` parses their tables. `pyslurm_client` is optional. `cache` answers for commands that only read.
"""
