"""Detectors and the runner that gathers their snapshots."""
