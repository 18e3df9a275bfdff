"""`wakeroll run` with a stopwatch, for `bench.start_parts`.

``python -m bench.timed_run BEGAN FILE`` runs both jobs with the settings of the environment. BEGAN is the time of the
monotonic clock (s) at which its parent started it. After the first batch with records, it writes FILE.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

Parts = dict[str, float]
"""Part of a start -> how long it took (s), in the order of the parts."""

_POLL_S = 0.02


class Stopwatch:
    """Takes the times of consecutive parts."""

    def __init__(self, began_s: float) -> None:
        """Begin the first part at a time of the monotonic clock (s)."""
        self.parts: Parts = {}
        self._last_s = began_s

    def lap(self, part: str) -> None:
        """End a part, which began when the last one ended."""
        now_s = time.monotonic()
        self.parts[part] = now_s - self._last_s
        self._last_s = now_s


def main() -> None:
    """Run until a signal."""
    watch, file = Stopwatch(float(sys.argv[1])), Path(sys.argv[2])
    import pyspark.core.context as spark_context

    from wakeroll_pipeline.cli.app import app_for
    from wakeroll_pipeline.jobs import coordinate, supervise

    watch.lap("Python and its modules")
    _wrap(
        supervise,
        "start_session",
        before=lambda: watch.lap("checks of the brokers and the stores"),
        after=lambda _: watch.lap("Spark session"),
    )
    _wrap(spark_context, "launch_gateway", after=lambda _: watch.lap("JVM"))

    def started(query: Any) -> None:
        watch.lap("states, and the start of the query")
        threading.Thread(target=_report, args=(query, watch, file), daemon=True).start()

    _wrap(coordinate, "start", after=started)
    app_for(["run"])(["run"])


def _wrap(
    module: Any, name: str, *, after: Callable[[Any], object], before: Callable[[], object] = lambda: None
) -> None:
    """Replace a function of a module by one that calls it between `before` and `after`."""
    function = getattr(module, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before()
        result = function(*args, **kwargs)
        after(result)
        return result

    setattr(module, name, wrapped)


def _report(query: Any, watch: Stopwatch, file: Path) -> None:
    """Write the parts when the query has finished a batch with records; the parts of the batch have Spark's names."""
    while not (done := [one for one in query.recentProgress if one["numInputRows"]]):
        time.sleep(_POLL_S)
    watch.lap("batches until the first one with records has ended")
    its = {f"of these, `{part}`": took_ms / 1_000 for part, took_ms in done[0]["durationMs"].items()}
    unfinished = file.with_suffix(".new")
    unfinished.write_bytes(msgspec.json.encode(watch.parts | its))
    unfinished.replace(file)


if __name__ == "__main__":
    main()
