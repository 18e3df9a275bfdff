"""The pure core of wakeroll: events in, decisions out; no I/O, no clock, no randomness.

Everything the coordinator knows is here, and Spark, tests, replay and the SDK all run it.
"""

from model.queue import Queue

__all__ = ["Queue"]
