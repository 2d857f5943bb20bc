"""Nodes that something speaks against: judging it, a list of those to stay off, telling who mends them."""
