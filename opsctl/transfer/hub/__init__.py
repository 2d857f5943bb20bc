"""The hub: what a run has there, and reading a run from it with no folder at hand."""
