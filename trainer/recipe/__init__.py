"""Arithmetic and rules that follow from the options alone, without torch."""
