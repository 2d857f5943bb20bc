"""What a training computes beside matrix products: a module for each family of operations, and what computes it where.

Each family's function takes the kernels that were chosen for it, or None: then torch computes it, with the same numbers
up to rounding.
"""
