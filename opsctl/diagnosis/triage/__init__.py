"""Find what ended a training, on which rank and node, and what to do: one verdict from logs, records and Slurm.

`read_evidence` reads the evidence of an attempt. `log_part` reads a log: `scan` finds lines with a rule's words in one
pass over bytes, `lines` separates the prefix with rank and node, and `rules` (the table is `rules.toml`) gives the
meaning. `log_header`, `line_prefixes` and `rank_locations` map ranks to nodes. `decide` compares `candidates` and
locates the best one (`location`); both are pure. `on_close` does all of this within the time that a closing job has.
"""
