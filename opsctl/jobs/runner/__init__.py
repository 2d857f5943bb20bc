"""The program of a training job, inside its allocation: `batch.run_job` on the first node.

It checks the kill switch, waits for the lease (`own_lease`), tests nodes (`good_nodes`), runs the step (`run_step`,
`step`) and closes the attempt (`own_attempt`). Threads watch the limit, the lease, requests, hangs and the scheduler
(`watch_thread`); only the main thread writes the training log (`main_log`).
"""
