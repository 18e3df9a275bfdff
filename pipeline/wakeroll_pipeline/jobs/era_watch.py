"""A replica's watch for new eras of other coordinators: a thread that follows the decisions topic.

A new era begins when a coordinator has lost its state, or records of the log. Readers drop decisions of older eras, so
the decisions of a replica that stays in its era have no effect.
"""

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message

from wakeroll.errors import WakerollError
from wakeroll.log_reader import LogReader, LogReplaced, TopicWatch
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.recovery.decided_eras import ends_of_decisions, header_of
from wakeroll_pipeline.settings import Settings

log = logging.getLogger("wakeroll.run")

_AT_ONCE = 1_000
_SLICE_S = 0.25


class LaterEra(WakerollError):
    """Another coordinator decides in a later era; the message names the shard and what to do."""


class EraWatch:
    """Follows the decisions from its creation on; the thread runs during a `with` block."""

    def __init__(self, settings: Settings) -> None:
        """Find the end of the decisions: from there on, the watch misses none.

        Raises:
            NotReachable: no broker answered.
        """
        self._replica = settings.replica
        self._topic = settings.connection.topics.decisions
        connection, quiet = settings.connection, {"auto.offset.reset": "earliest", "log_level": 0}
        ends = ends_of_decisions(settings)
        self._reader = LogReader(lambda: connection.consumer(**quiet), TopicWatch(connection))
        self._reader.begin({(self._topic, number): end for number, (_, end) in ends.items()})
        self._eras: Mapping[str, int] = {}
        self._later = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="era watch", daemon=True)
        self._trouble = Trouble(log, "the eras of other coordinators can be read again")

    def start(self, eras: Mapping[str, int]) -> Self:
        """Compare with these eras: shard, like ``groups-3`` -> the era in which this replica decides."""
        self._eras = eras
        return self

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.close()

    def raise_if_later(self) -> None:
        """Raise `LaterEra` if another coordinator has published a decision of a later era."""
        if self._later:
            raise LaterEra(self._later)

    def _run(self) -> None:
        while not self._stop.is_set() and not self._later:
            for message in self._taken():
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        self._trouble.began(f"the eras of other coordinators cannot be read: {error.str()}; retrying")
                    continue
                self._trouble.ended()
                header = header_of(message)
                if header is not None and header.era > self._eras.get(header.shard, header.era):
                    self._later = (
                        f"{header.shard} has begun era {header.era}, but replica {self._replica!r} decides in era "
                        f"{self._eras[header.shard]}: start it again, and it joins the new era"
                    )
                    return

    def _taken(self) -> list[Message]:
        """Return the next records. Eras only grow, even in a topic that was created again."""
        try:
            return self._reader.take(_AT_ONCE, _SLICE_S)
        except LogReplaced as problem:
            log.warning("%s; its eras are read from its start", problem)
            self._reader.renew(dict.fromkeys(self._reader.positions(), OFFSET_BEGINNING))
            return []
