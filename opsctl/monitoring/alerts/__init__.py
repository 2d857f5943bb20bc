"""Findings to channels, with memory: once, reminded, acknowledged, recovered.

`handle` remembers what was found, `decide` (pure) makes the messages, `delivery` starts a process for each channel that
is due, `send` is that process. The memory and the messages that follow from it are one file, replaced whole under one
lock. What a channel has yet to take follows from the lines of `.opsctl/alerts.jsonl` in their order, so that several
users' crons and the training job share one truth. Secrets reach a sender on stdin alone, and every text that a server
gave passes a redactor.
"""
