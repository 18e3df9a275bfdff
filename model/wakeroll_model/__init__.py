"""The pure core of wakeroll: events in, decisions out; no I/O, no clock, no randomness.

It holds all logic of the coordinator. Spark, the tests, the replay and the SDK run the same code.
"""

from wakeroll_model.queue import Queue

__all__ = ["Queue"]
