"""Find what ended a training, on which rank and node, and what to do: one verdict from logs, records and Slurm.

`read_evidence` reads what an attempt left. `log_part` reads a log: `scan` finds lines with a rule's words in one pass
over bytes, `lines` splits off who said them, `rules` (the table is `rules.toml`) says what they mean. `log_header`,
`line_prefixes` and `rank_locations` find out which rank is on which node. `decide` weighs `candidates` and places the
winner (`location`); both are pure. `on_close` does all of this within the time that a closing job has.
"""
