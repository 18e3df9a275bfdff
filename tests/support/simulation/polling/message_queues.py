"""Kafka's queues of messages as a world has them, and who wants which message, without `wakeroll_model.filters`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wakeroll_model.events import Arrival, Pull

CODES = {"paid": 3433164, "lost": 3327780, "Aa": 2112, "BB": 2112}
"""Tag -> its code, as Java's `String.hashCode` says; the last two have the same."""

Wish = tuple[str, str]
"""Expression and its type."""

WISHES: Mapping[Wish, Callable[[str], bool]] = {
    ("*", "TAG"): lambda _: True,
    ("paid", "TAG"): lambda tag: tag == "paid",
    ("paid || lost", "TAG"): lambda tag: tag in ("paid", "lost"),
    ("Aa", "TAG"): lambda tag: tag == "Aa",
    ("none such", "TAG"): lambda _: False,
    ("amount > 10", "SQL92"): lambda amount: int(amount) > 10,
}
"""What clients want: a message with this tag; by SQL92, one with this amount."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `number` is its own in the whole world, an offset may be used again after a truncation."""

    number: int
    tag: str
    amount: int

    def knowledge(self, kind: int) -> dict[str, object]:
        """Return what an arrival tells of it: tags (1), their code (2), properties (4), added up; 0 is nothing."""
        said = {"tags": self.tag, "tags_code": CODES[self.tag], "properties": {"amount": str(self.amount)}}
        return {name: value for bit, (name, value) in enumerate(said.items()) if kind >> bit & 1}


class OutOfRange(Exception):
    """Somebody reads beyond the end of a queue: it has been truncated."""


@dataclass
class MessageQueue:
    """The messages of one queue by offset; None stands where nobody finds anything: a transaction's marker."""

    log: list[Message | None] = field(default_factory=list)

    def read(self, offset: int) -> tuple[list[Message], int]:
        """Return the messages from an offset on, and where to go on; of markers alone, nothing and the same offset.

        Raises:
            OutOfRange: the queue ends before this offset.
        """
        if offset > len(self.log):
            raise OutOfRange
        found = [message for message in self.log[offset:] if message]
        return found, len(self.log) if found else offset


def may_want(pull: Pull, arrival: Arrival) -> bool:
    """Whether a pull's client may want the message that arrived, as far as the arrival tells; what it hides may be."""
    wanted = WISHES.get((pull.expression, pull.expression_type), lambda tag: tag == pull.expression)
    if pull.expression_type == "SQL92":
        return arrival.properties is None or wanted(arrival.properties["amount"])
    if arrival.tags is not None:
        return wanted(arrival.tags)
    if arrival.tags_code is not None and pull.expression != "*":
        return any(wanted(tag) for tag, code in CODES.items() if code == arrival.tags_code)
    return True
