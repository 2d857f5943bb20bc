"""Findings to channels, with memory: once, reminded, acknowledged, recovered; nothing lost, nothing twice."""
