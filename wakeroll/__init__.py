"""What an application imports: consumers whose coordinator is the wakeroll control plane, and an operator's tools."""

from model.queue import Queue
from wakeroll.admin import Admin
from wakeroll.consumer import Consumer
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import Fenced, InvalidUsage, NotReachable, WakerollError
from wakeroll.fetch import Fetched
from wakeroll.operator_requests import RequestRefused, RequestUnanswered
from wakeroll.producer import Producer

__all__ = [
    "Admin",
    "Consumer",
    "EpochMs",
    "Fenced",
    "Fetched",
    "InvalidUsage",
    "NotReachable",
    "Producer",
    "Queue",
    "RequestRefused",
    "RequestUnanswered",
    "WakerollError",
]
