"""One thing that goes wrong in a world of either kind, or changes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """What happens when, to whom, for how long and how much; its kind says what that means."""

    at_ms: int
    kind: str
    who: str = ""
    """A client as ``group/client_id``, a group, a topic, or the key of a queue."""
    length_ms: int = 0
    amount: int = 0

    def __str__(self) -> str:
        parts = [self.kind, self.who, f"for {self.length_ms / 1000:g} s" * bool(self.length_ms)]
        return " ".join([part for part in parts if part] + [f"({self.amount})"] * bool(self.amount))
