"""One check a module, each with its `DETECTOR`; `opsctl.monitoring.registry` lists them."""
