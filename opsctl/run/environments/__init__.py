"""Python environments of trainings: what is in one, how it differs, building one beside those in use."""
