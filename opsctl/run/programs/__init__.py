"""Training programs other than our trainer: how each kind is started, asked to save, observed and resumed.

A module for each kind has one value, KIND, of the type `kind.Kind`. `registry` finds it by its name in `[program]`.
"""
