"""Lanes: the owners of each queue during the last hour, from the hand-overs of a group."""

from collections.abc import Iterable, Mapping, Sequence

from wakeroll_model.decisions import Handover
from wakeroll_model.queue import Queue
from wakeroll_pipeline.live.view_structs import LaneRow, PeriodRow


def lanes_of(
    queues: Sequence[Queue], owners: Mapping[Queue, str], handovers: Iterable[Handover], from_ms: int, to_ms: int
) -> list[LaneRow]:
    """Return one lane per queue; a slice has no period before its first owner, or while there were others.

    Args:
        queues: the queues, in the order of the lanes.
        owners: queue -> its owner at the end; a queue without an owner is missing.
        handovers: changes of owners, oldest first; those before the period are ignored.
        from_ms: begin of the period (log time, epoch ms).
        to_ms: end of the period.
    """
    of_queue: dict[Queue, list[Handover]] = {}
    for one in handovers:
        of_queue.setdefault(one.queue, []).append(one)
    return [
        LaneRow(queue=str(queue), periods=_periods(queue, of_queue.get(queue, ()), owners, from_ms, to_ms))
        for queue in queues
    ]


def _periods(
    queue: Queue, changes: Sequence[Handover], owners: Mapping[Queue, str], from_ms: int, to_ms: int
) -> list[PeriodRow]:
    """Return the periods of one queue; without a known change, its owner had it all the time."""
    recent = [one for one in changes if one.at_ms > from_ms]
    earlier = [one for one in changes if one.at_ms <= from_ms]
    client_id, how = owners.get(queue, ""), ""
    exists = True
    if earlier:
        client_id, how = earlier[-1].to or "", earlier[-1].how
        exists = how != "cut"
    elif recent:
        client_id = recent[0].from_ or ""
        exists = queue.slices == 1 or recent[0].how != "first"
    periods: list[PeriodRow] = []
    begin_ms = from_ms
    for one in recent:
        at_ms = max(min(one.at_ms, to_ms), begin_ms)
        if at_ms > begin_ms and exists:
            periods.append(_period(client_id, begin_ms, at_ms, how))
        client_id, how, begin_ms, exists = one.to or "", one.how, at_ms, one.how != "cut"
    periods.append(_period(client_id, begin_ms, to_ms, how, is_open=True))
    return periods


def _period(client_id: str, from_ms: int, to_ms: int, how: str, *, is_open: bool = False) -> PeriodRow:
    return PeriodRow(client_id=client_id, from_ms=from_ms, to_ms=to_ms, how=how, is_open=is_open)
