"""What the processes of a deployment know of each other: which queries decide, locks, and the status file of `run`."""
