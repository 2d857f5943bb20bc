"""Parameter groups and the optimizer over them."""
