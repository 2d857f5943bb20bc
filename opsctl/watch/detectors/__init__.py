"""One check a module, each with its `DETECTOR`; `opsctl.watch.registry` lists them."""
