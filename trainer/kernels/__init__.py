"""The operations of a training besides matrix products: a module for each family, and the choice of their kernels.

Each family's function takes the chosen kernels, or None: then torch computes it, with the same numbers up to rounding.
"""
