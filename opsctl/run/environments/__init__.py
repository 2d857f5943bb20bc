"""Python environments of trainings, built with uv beside those in use.

`recipe` reads `[environment]`, `building` makes one and lets `current` name it, `query` asks one for its contents,
`inspection` checks and freezes it, `changes` compares it with the last attempt's.
"""
