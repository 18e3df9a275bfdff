"""Shared state of a deployment's processes: deciding queries, process locks, and the status file of `run`."""
