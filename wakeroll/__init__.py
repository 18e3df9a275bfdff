"""What an application imports: a consumer of a group whose coordinator is the wakeroll control plane."""

from model.queue import Queue
from wakeroll.consumer import Consumer
from wakeroll.errors import Fenced, InvalidUsage, NotReachable, WakerollError

__all__ = ["Consumer", "Fenced", "InvalidUsage", "NotReachable", "Queue", "WakerollError"]
