"""Why there is no release."""


class Refused(Exception):
    """One line: what was found, where, and what to do. Nothing was changed."""
