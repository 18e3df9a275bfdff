"""Rebalances of a group before the last hour, from the newest files of the tables that have them."""

import msgspec
from msgspec import structs

from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import UNREADABLE
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.ledger import Value
from wakeroll_pipeline.live.decision_feed import DecisionFeed
from wakeroll_pipeline.live.group_page import rebalance_rows
from wakeroll_pipeline.live.view_structs import GroupView, RebalanceRow

_PERIODS_MS = tuple(hours * 3_600_000 for hours in (2, 32))
"""Lengths of periods before the last rebalance (ms); if the longest has too few rebalances, the list stays short."""

_decoder: msgspec.json.Decoder[AnyDecision] = msgspec.json.Decoder(AnyDecision)


def with_earlier_rebalances(ledger: DuckLedger, view: GroupView, most: int) -> GroupView:
    """Return the view of a group with earlier rebalances, until there are `most`.

    The time of the last one is known, so only the files of some hours before it are opened, however old it is.

    Args:
        ledger: the ledger of which the view was made.
        view: the group, with the rebalances of the last hour.
        most: number of rebalances from which on no earlier ones are read.
    """
    last_ms = view.summary.rebalanced_ms
    if last_ms is None or len(view.rebalances) >= most:
        return view
    rows, from_ms = view.rebalances, view.rebalances_from_ms
    first_epoch = min((one.epoch for one in rows), default=view.summary.epoch + 1)
    if first_epoch == 1:
        return view
    for length_ms in _PERIODS_MS:
        from_ms = min(last_ms, view.rebalances_from_ms) - length_ms
        found = [one for one in _read(ledger, view, from_ms, most) if one.epoch < first_epoch]
        rows = [*view.rebalances, *found][:most]
        if len(rows) == most:
            return structs.replace(view, rebalances=rows, rebalances_from_ms=rows[-1].at_ms)
    return structs.replace(view, rebalances=rows, rebalances_from_ms=from_ms)


def _read(ledger: DuckLedger, view: GroupView, from_ms: int, most: int) -> list[RebalanceRow]:
    """Return the recorded rebalances since a log time (epoch ms), the newest one first."""
    feed = DecisionFeed()
    end_ms = max(view.rebalances_from_ms, view.summary.rebalanced_ms or 0)
    query = """
        with its as (
            select json, partition, published_ms, era, seq, kind
            from decisions
            where group_id = $group_id and kind in ('rebalance', 'handover') and at_ms >= $from_ms and at_ms <= $end
        ),
        newest as (select era, seq from its where kind = 'rebalance' order by era desc, seq desc limit $most)
        select json, partition, published_ms from its
        where (era, seq) >= (select min((era, seq)) from newest)
        order by era, seq
    """
    with ledger.within(from_ms, end_ms) as near:
        values: dict[str, Value] = {"group_id": view.summary.group_id, "from_ms": from_ms, "end": end_ms, "most": most}
        for text, partition, published_ms in near.stream(query, **values):
            try:
                feed.note(partition, _decoder.decode(text), published_ms)
            except UNREADABLE:  # of a newer version
                continue
    return rebalance_rows(feed.of(view.summary.group_id), most)
