"""Commands that change what is queued of a run: submit, revise, cancel, refill, requests, and care of checkpoints.

Every command that submits takes the same steps: check the run file (`submit.check`), hold the run's lock and settle
what was cut off (`live_jobs`), decide what to wait for, then publish, sbatch and record (`send_chain`). `published`
submits the newest revision where no run file is at hand: for `refill` and `carry_out`.
"""
