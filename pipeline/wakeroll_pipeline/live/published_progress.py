"""The comparison of the model with the coordinator: the published decisions, and whether they are the model's."""

from collections import deque
from typing import Literal, NamedTuple

from wakeroll_model.decision_order import era_of
from wakeroll_model.decisions import AnyDecision

MOST_PENDING = 20_000
"""Maximum number of decisions of a shard that wait for their publication; older ones are counted as published."""

Agreement = Literal["equal", "later-era", "different"]


class _Own(NamedTuple):
    seq: int
    kind: str
    cause: int
    """Offset of the record that led to the decision."""
    made_s: float
    """When the model made the decision, by this process's monotonic clock (s)."""


def _kind(decision: AnyDecision) -> str:
    return str(decision.__struct_config__.tag)


class PublishedProgress:
    """The published decisions of one shard, compared with those of the model.

    The model applies the same records, so it makes the same decisions, a moment before or after it reads the published
    ones. A difference means that the model did not begin with the coordinator's state.
    """

    def __init__(self, era: int, began: int) -> None:
        """Begin in an era, with a model that has applied the records up to offset `began`."""
        self.era = era
        self.began = began
        """Offset of the last record that the state at the beginning includes."""
        self._made = 0
        """Highest seq that the model has made; 0 before its first decision."""
        self._published = 0
        """Highest published seq of the era."""
        self._pending: deque[_Own] = deque(maxlen=MOST_PENDING)
        self.is_different = False
        """Whether a published decision differs from that of the model."""

    def made(self, decision: AnyDecision, now_s: float) -> None:
        """Note a decision of the model."""
        self._made = decision.seq
        if decision.seq > self._published:
            self._pending.append(_Own(decision.seq, _kind(decision), decision.cause.offset, now_s))

    def published(self, decision: AnyDecision, reached: int) -> Agreement:
        """Compare a published decision with the model, which has applied the records up to offset `reached`."""
        era = era_of(decision.shard)
        if era > self.era:
            return "later-era"
        if era < self.era or decision.seq <= self._published:
            return "equal"
        self._published = decision.seq
        while self._pending and self._pending[0].seq < decision.seq:
            self._pending.popleft()
        cause = decision.cause.offset
        if self._pending and self._pending[0].seq == decision.seq:
            own = self._pending.popleft()
            self.is_different |= (own.kind, own.cause) != (_kind(decision), cause)
        elif decision.seq > self._made and self.began < cause <= reached:
            self.is_different = True  # the model has applied the cause, and did not decide so
        return "different" if self.is_different else "equal"

    @property
    def pending(self) -> int:
        """Number of the model's decisions that are not published yet."""
        return len(self._pending)

    def waiting_s(self, now_s: float) -> float:
        """Return for how long the oldest unpublished decision has waited, in seconds; 0 if there is none."""
        return now_s - self._pending[0].made_s if self._pending else 0.0
