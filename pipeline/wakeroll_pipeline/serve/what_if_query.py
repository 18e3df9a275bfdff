"""The form of a hypothetical change: its fields in the address of a page, and their meaning."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from starlette.datastructures import QueryParams

from wakeroll.errors import InvalidUsage
from wakeroll.topic_slices import slices_in
from wakeroll_model.strategies.registry import STRATEGIES
from wakeroll_model.what_if import Prediction, Situation, Variation
from wakeroll_pipeline.questions.what_if_answers import alternatives, readers_in_words, topic_queues

MOST_ADDED = 1_000
MOST_QUEUES = 10_000
MOST_STRATEGIES = 8
SHOWN_ROWS = 500
"""Maximum number of queues in the table of a prediction."""


class WhatIfQuery(Struct, frozen=True, kw_only=True):
    """The fields of the form."""

    strategies: Sequence[str] = ()
    add: int = 0
    remove: Sequence[str] = ()
    queues: str = ""
    """Texts like ``orders=12``, separated by spaces or commas."""
    slices: str = ""
    """Texts like ``orders=8``, separated by spaces or commas."""

    @property
    def is_empty(self) -> bool:
        """Whether no change is named."""
        return not (self.strategies or self.add or self.remove or self.queues or self.slices)

    def changes(self) -> list[Variation]:
        """Return the alternatives: one per strategy, or one.

        Raises:
            InvalidUsage: a field is not valid.
        """
        grown = dict(topic_queues(text, "queues") for text in self.queues.replace(",", " ").split())
        if too_many := [topic for topic, count in grown.items() if count > MOST_QUEUES]:
            raise InvalidUsage(
                f"queues of {too_many[0]!r} are {grown[too_many[0]]}; at most {MOST_QUEUES} are simulated"
            )
        cut = slices_in("slices", self.slices.replace(",", " ").split())
        settings = {"slices": cut} if cut else {}
        change = Variation(settings=settings, add=self.add, remove=self.remove, queues=grown)
        return alternatives(change, self.strategies)

    def params(self) -> list[tuple[str, str]]:
        """Return the fields as parameters of an address."""
        pairs = [("strategy", one) for one in self.strategies] + [("remove", one) for one in self.remove]
        pairs += [("add", str(self.add))] if self.add else []
        texts = (("queues", self.queues), ("slices", self.slices))
        return pairs + [(name, text) for name, text in texts if text]


def what_if_query(params: QueryParams) -> WhatIfQuery:
    """Read the fields of the form; clients that leave may be named in one field or in several.

    Raises:
        InvalidUsage: a number is not valid, or there are too many strategies.
    """
    strategies = list(dict.fromkeys(one for one in params.getlist("strategy") if one))
    if len(strategies) > MOST_STRATEGIES:
        raise InvalidUsage(f"{len(strategies)} strategies are named; at most {MOST_STRATEGIES} are compared at once")
    add = params.get("add", "").strip() or "0"
    if not (add.isascii() and add.isdigit() and int(add[:9]) <= MOST_ADDED):
        raise InvalidUsage(f"add is {add[:64]!r}; it must be a number of members from 0 to {MOST_ADDED}")
    remove = [one for text in params.getlist("remove") for one in text.replace(",", " ").split()]
    return WhatIfQuery(
        strategies=strategies,
        add=int(add),
        remove=list(dict.fromkeys(remove)),
        queues=params.get("queues", "").strip()[:1_000],
        slices=params.get("slices", "").strip()[:1_000],
    )


def strategy_names() -> list[str]:
    """Return the names of all strategies, sorted."""
    return sorted(STRATEGIES)


class OwnerRow(Struct, frozen=True, kw_only=True):
    """The present owner of a queue, and its owner in each alternative."""

    queue: str
    now: str
    then: list[str]
    moves: bool
    """Whether any alternative has another owner."""


class Column(Struct, frozen=True, kw_only=True):
    """The sums of a situation."""

    title: str
    strategy: str
    members: int
    queues: int
    unowned: int
    spread: int
    readers: str = ""
    """How many members read a partition, in words; empty if no partition is cut."""
    moved: int | None = None
    handovers: int | None = None
    took_ms: int | None = None
    notes: list[str] = []


class WhatIfTable(Struct, frozen=True, kw_only=True):
    """The comparison of the present with the alternatives, for the page."""

    columns: list[Column]
    clients: list[tuple[str, list[int | None]]]
    """Client -> its number of queues in each column; None if it is not a member."""
    rows: list[OwnerRow]
    """Queues, those that move first."""
    total: int
    """Number of queues; `rows` may be fewer."""


def table_of(answers: dict[str, Prediction], notes: dict[str, list[str]]) -> WhatIfTable:
    """Return the comparison of all alternatives.

    Args:
        answers: title of an alternative -> its prediction; at least one.
        notes: title -> sentences about the alternative.
    """
    now = next(iter(answers.values())).now
    situations = [now, *(answer.then for answer in answers.values())]
    columns = [Column(title="now", **_sums(now))]
    for title, answer in answers.items():
        columns.append(
            Column(
                title=title,
                **_sums(answer.then),
                moved=len(answer.moved),
                handovers=len(answer.handovers),
                took_ms=answer.took_ms,
                notes=notes[title],
            )
        )
    shares = [one.shares for one in situations]
    clients = sorted({client_id for one in shares for client_id in one})
    queues = sorted({queue for one in situations for queue in (*one.owners, *one.unowned)})
    rows = []
    for queue in queues:
        owner, then = now.owners.get(queue, ""), [one.owners.get(queue, "") for one in situations[1:]]
        rows.append(OwnerRow(queue=str(queue), now=owner, then=then, moves=any(one != owner for one in then)))
    rows.sort(key=lambda row: not row.moves)
    return WhatIfTable(
        columns=columns,
        clients=[(one, [len(share[one]) if one in share else None for share in shares]) for one in clients],
        rows=rows[:SHOWN_ROWS],
        total=len(rows),
    )


def _sums(situation: Situation) -> dict[str, Any]:
    return {
        "strategy": situation.strategy,
        "members": len(situation.clients),
        "queues": len(situation.owners),
        "unowned": len(situation.unowned),
        "spread": situation.spread,
        "readers": readers_in_words(situation),
    }
