"""Python environments of trainings, built with uv next to those in use.

`recipe` reads `[environment]`, `building` makes one and points `current` to it, `query` asks one for its contents,
`inspection` checks and freezes it.
"""
