"""Bad nodes: evidence (`node_evidence`), verdicts (`judging`), the exclusion list, reports to the site's support."""
