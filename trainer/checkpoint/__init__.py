"""Saving whole and loading back."""
