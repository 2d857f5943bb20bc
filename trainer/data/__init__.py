"""Conversion of text to samples, in Megatron's formats and order."""
