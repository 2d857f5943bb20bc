"""Everything that follows from the options alone: arithmetic and rules, without torch."""
