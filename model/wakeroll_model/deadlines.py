"""Deadlines of entities. The cost of a tick depends on the number of due entities, and not on that of all entities."""

from heapq import heapify, heappop, heappush

from wakeroll_model.config import NEVER_MS


class Deadlines:
    """Name of an entity -> its deadline, by the shard's clock in ms."""

    def __init__(self, by_name: dict[str, int]) -> None:
        """Continue with these deadlines; the map is changed in place, and only by `set` and `drop`."""
        self._by_name = by_name
        self._heap: list[tuple[int, str]] | None = None
        """Heap of (deadline, name), with outdated ones; None until a tick needs it."""

    def set(self, name: str, due_ms: int) -> None:
        """Set the deadline of an entity; `NEVER_MS`: never."""
        if self._by_name.get(name) != due_ms:
            self._by_name[name] = due_ms
            if self._heap is not None:
                heappush(self._heap, (due_ms, name))

    def drop(self, name: str) -> None:
        """Forget an entity."""
        self._by_name.pop(name, None)

    def due(self, now_ms: int) -> tuple[list[str], int]:
        """Return the names of due entities, sorted, and the earliest deadline after now; `NEVER_MS` if there is none.

        An entity stays due until its deadline is set to a later time.
        """
        if self._heap is None:
            self._heap = [(due_ms, name) for name, due_ms in self._by_name.items()]
            heapify(self._heap)
        heap, due = self._heap, dict[str, int]()
        while heap and (heap[0][0] <= now_ms or self._by_name.get(heap[0][1]) != heap[0][0]):
            due_ms, name = heappop(heap)
            if self._by_name.get(name) == due_ms:
                due[name] = due_ms
        next_ms = heap[0][0] if heap else NEVER_MS
        for name, due_ms in due.items():
            heappush(heap, (due_ms, name))
        return sorted(due), next_ms
