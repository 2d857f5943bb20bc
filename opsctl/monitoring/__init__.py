"""A snapshot of a run, checks as pure functions of it, and what follows from their findings.

* `runner.gather` asks the sources of `gather` for the parts of a `snapshot`. A source that fails is among the
  snapshot's `problems` and blinds only the checks that need it.
* `registry` lists the checks of `checks`. A finding's key, check or check:subject, is the same at every check.
* `all_runs` asks each Slurm once for all runs. `watch` and `metrics` always ask Slurm now; screens may use an answer of
  another process.
* `watch` records what was found, keeps bad nodes out of the queue, and hands the findings to `alerts`.
* `overview` is a run as `status` shows it: its findings with what is remembered of them. Checks that cost too much for
  a screen are run by the cron alone, and shown with the time of that.
* `on_call` puts a run's records in the order of time.
"""
