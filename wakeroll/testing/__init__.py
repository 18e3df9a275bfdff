"""A broker and a coordinator in memory, for tests of an application's handlers: no broker, no Spark, no Java."""

from wakeroll.testing.delivery import Delivery
from wakeroll.testing.member_thread import Member
from wakeroll.testing.memory_broker import MemoryBroker

__all__ = ["Delivery", "Member", "MemoryBroker"]
