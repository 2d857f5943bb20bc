"""Checks by subject, each a function with `@check`; `opsctl.monitoring.registry` lists them."""
