"""The `happened` command: the events of a period, as the page shows them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from wakeroll.epoch_ms import EpochMs, now_ms
from wakeroll.errors import InvalidUsage, NotReachable, missing_extra
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.live_answer import live_model
from wakeroll_pipeline.cli.open_ledger import ledger
from wakeroll_pipeline.cli.options import LiveOptions, time_option
from wakeroll_pipeline.cli.output import Output, clock_text, quiet_if_closed, seconds_text
from wakeroll_pipeline.ledger.known_groups import unknown_group
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.settings import Settings

if TYPE_CHECKING:
    from wakeroll_pipeline.live.published_ledger import PublishedLedger
    from wakeroll_pipeline.questions.happenings import Happened, Happening

out = Output(highlight=False, soft_wrap=True)
complain = Console(stderr=True, highlight=False, soft_wrap=True)
_silent = Console(quiet=True)

_OVERLAP_MS = 3_600_000
"""Part of the past that is read again for events that were decided or recorded late (ms)."""
_PAUSE_S = 5.0
"""How often the tables are read again (s); `run` appends to them every few seconds."""
_SLICE_S = 0.2
_END = 2**62
"""A time after all others."""

OfGroup = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP]",
        help="Show the events of this group; default: of all groups.",
        autocompletion=groups_beginning_with,
    ),
]
Since = Annotated[
    int | None, time_option("--since", "First moment of the period; default: an hour before the last one.")
]
Until = Annotated[
    int | None, time_option("--until", "Last moment of the period; default: now, or the end of the recorded log.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new events too as they come, until Ctrl-C.")]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document; with --follow, one line with a JSON document per event."),
]


def happened(
    deployment: LiveOptions,
    group: OfGroup = None,
    since: Since = None,
    until: Until = None,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Show changes of members, rebalances, hand-overs, resets and rejections, the newest last, as the page does.

    Events of one shard are in the order in which they were decided.
    """
    if follow and until is not None:
        raise InvalidUsage("--follow has no end; leave out --until")
    if since is not None and until is not None and since > until:
        raise InvalidUsage(f"--since is {EpochMs(since)}; it must not be after --until, which is {EpochMs(until)}")
    settings = deployment.settings()
    source = _Live if settings.bootstrap else _Tables
    stop = StopSignals(at_once=_leave).asked if follow else threading.Event()
    with quiet_if_closed(), source.opened(settings, group or "", since, until, stop) as opened:
        found = opened.first(may_be_empty=follow)
        if follow and as_json:
            _write_lines(found.happened.events, found.to_ms)
        elif as_json:
            print(msgspec.json.encode(found).decode())
        else:
            _write(found)
            if not follow:
                opened.write_age()
        if follow:
            _follow(opened, found, stop, _write_lines if as_json else _write_rows)


def _leave(_number: int) -> NoReturn:
    raise KeyboardInterrupt


class _Tables:
    """Answers from the newest versions of the tables."""

    def __init__(
        self, settings: Settings, group_id: str, since: int | None, until: int | None, stop: threading.Event
    ) -> None:
        self._settings, self._group_id, self._since, self._until = settings, group_id, since, until
        self._stop = stop
        self._last_ms = 0

    @classmethod
    @contextmanager
    def opened(
        cls, settings: Settings, group_id: str, since: int | None, until: int | None, stop: threading.Event
    ) -> Iterator["_Tables"]:
        yield cls(settings, group_id, since, until, stop)

    def first(self, *, may_be_empty: bool) -> "Happened":
        """Return the events of the period; if more may follow, there need not be any yet."""
        with ledger(self._settings, out, "duckdb", only=SNAPSHOTS) as opened:
            from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
            from wakeroll_pipeline.ledger.shared_ledger import extent_of
            from wakeroll_pipeline.questions.happenings import happened, period_of, refuse_if_unknown

            assert isinstance(opened, DuckLedger)
            extent = extent_of(opened)
            if extent.from_ms is None or extent.to_ms is None:
                raise InvalidUsage("the tables hold no records yet")
            self._last_ms = extent.to_ms
            if may_be_empty and self._since is not None and self._since > extent.to_ms:
                from_ms, to_ms = self._since, self._since
            else:
                from_ms, to_ms = period_of(extent.from_ms, extent.to_ms, self._since, self._until)
            found = happened(opened, from_ms, to_ms, self._group_id)
            try:
                refuse_if_unknown(opened, found)
            except InvalidUsage as error:
                if not may_be_empty:
                    raise
                complain.print(f"{error}; waiting", markup=False)
            return found

    def wait_for_news(self) -> bool:
        """Wait a while; return whether there may be new events."""
        return not self._stop.wait(_PAUSE_S)

    def events(self, from_ms: int) -> "Sequence[Happening]":
        """Return the events from a moment on (epoch ms)."""
        from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
        from wakeroll_pipeline.questions.happenings import happenings_nearby

        with ledger(self._settings, _silent, "duckdb", only=SNAPSHOTS) as opened:
            assert isinstance(opened, DuckLedger)
            return happenings_nearby(opened, from_ms, _END, self._group_id).events

    def forget(self, before_ms: int) -> None:
        """Do nothing: the tables are on disk."""

    def write_age(self) -> None:
        """Print how old the answer is."""
        if self._until is None:
            age = f"{seconds_text(max(now_ms() - self._last_ms, 0))} ago"
            out.print(f"as of the end of the recorded log: {clock_text(self._last_ms)}, {age}")


class _Live:
    """Answers from the brokers."""

    def __init__(
        self,
        published: "PublishedLedger",
        settings: Settings,
        group_id: str,
        since: int,
        until: int | None,
    ) -> None:
        self._published, self._settings, self._group_id = published, settings, group_id
        self._since, self._until = since, until
        self._is_cut_off = False

    @classmethod
    @contextmanager
    def opened(
        cls, settings: Settings, group_id: str, since: int | None, until: int | None, stop: threading.Event
    ) -> Iterator["_Live"]:
        try:
            from wakeroll_pipeline.live.published_ledger import PublishedLedger
            from wakeroll_pipeline.questions.happenings import DEFAULT_MS
        except ModuleNotFoundError as missing:
            raise missing_extra("a live answer", "ask", missing) from None
        from_ms = (now_ms() if until is None else until) - DEFAULT_MS if since is None else since
        published = PublishedLedger(settings.connection, from_ms)
        try:
            with out.status("reading the decisions"):
                published.read_to_the_end(stop)
            yield cls(published, settings, group_id, from_ms, until)
        finally:
            published.close()

    def first(self, *, may_be_empty: bool) -> "Happened":
        """Return the events of the period; if more may follow, there need not be any yet."""
        from wakeroll_pipeline.questions.happenings import happened

        [newest] = self._published.ledger.rows("select max(at_ms) as at_ms from decisions")
        to_ms = max(now_ms(), newest.at_ms or 0, self._since) if self._until is None else self._until
        found = happened(self._published.ledger, self._since, to_ms, self._group_id)
        if self._group_id and not found.happened.total:
            with live_model(self._settings, out) as model:
                names = model.names()
            if self._group_id not in names and not may_be_empty:
                raise InvalidUsage(unknown_group(self._group_id, names))
            if self._group_id not in names:
                complain.print(f"{unknown_group(self._group_id, names)}; waiting", markup=False)
        return msgspec.structs.replace(found, missing=self._published.missing(self._since))

    def wait_for_news(self) -> bool:
        """Wait a while; return whether there are new events."""
        try:
            has_news = self._published.read(_SLICE_S)
        except NotReachable as error:
            if not self._is_cut_off:
                complain.print(f"{error}; waiting", markup=False)
            self._is_cut_off = True
            return False
        return has_news

    def events(self, from_ms: int) -> "Sequence[Happening]":
        """Return the events from a moment on (epoch ms)."""
        from wakeroll_pipeline.questions.happenings import happenings_nearby

        self._is_cut_off = False
        return happenings_nearby(self._published.ledger, from_ms, _END, self._group_id).events

    def forget(self, before_ms: int) -> None:
        """Free the memory of the events before a log time (epoch ms)."""
        self._published.forget(before_ms)

    def write_age(self) -> None:
        """Do nothing: the answer is current."""


def _follow(
    source: _Tables | _Live,
    found: "Happened",
    stop: threading.Event,
    write: "Callable[[Sequence[Happening], int], None]",
) -> None:
    """Print the events after the first answer, each once, until the stop.

    An event may be decided or recorded later than others with a later log time. So each reading begins a while before
    the newest event.
    """
    written = {(one.shard, one.seq): one.at_ms for one in found.happened.events}
    newest_ms = max(written.values(), default=found.to_ms)
    while not stop.is_set():
        if not source.wait_for_news():
            continue
        from_ms = max(found.from_ms, newest_ms - _OVERLAP_MS)
        new = [one for one in source.events(from_ms) if (one.shard, one.seq) not in written]
        if not new:
            continue
        write(new, found.to_ms)
        written |= {(one.shard, one.seq): one.at_ms for one in new}
        newest_ms = max(newest_ms, *(one.at_ms for one in new))
        source.forget(newest_ms - 2 * _OVERLAP_MS)
        written = {place: at_ms for place, at_ms in written.items() if at_ms >= newest_ms - 2 * _OVERLAP_MS}


def _write(found: "Happened") -> None:
    from wakeroll_pipeline.questions.happening_rows import NOTHING, kind_counts

    counts = [
        f"{one.number:,} {one.name}" + (f" ({', '.join(one.parts)})" if one.parts else "")
        for one in kind_counts(found.happened.counts)
    ]
    whose = f" to {found.group_id}" if found.group_id else ""
    period = f"from {EpochMs(found.from_ms)} to {EpochMs(found.to_ms)}"
    out.print(f"What happened{whose} {period}", style="bold", markup=False)
    for one in counts:
        out.print(one, style="dim", markup=False)
    for missing in found.missing:
        out.print(f"[yellow]this history has a gap:[/] {missing}")
    if found.happened.total:
        _write_rows(found.happened.events, found.to_ms)
    else:
        out.print(NOTHING)
    out.file.flush()


def _write_rows(events: "Sequence[Happening]", to_ms: int) -> None:
    from wakeroll_pipeline.cli.styled_text import plain_text
    from wakeroll_pipeline.live.verdicts import clock
    from wakeroll_pipeline.questions.happening_rows import happening_rows

    for row in happening_rows(events):
        one = row.first
        line = Text(f"{clock(one.at_ms, to_ms)}  ")
        line.append_text(plain_text(one.group_id or "-", "bold")).append("  ")
        line.append(f"{one.kind:9}", _STYLES.get(one.kind, "")).append("  ")
        line.append_text(plain_text(row.text))
        for note in (*row.notes, one.record):
            if note:
                line.append("  ").append_text(plain_text(note, "dim"))
        out.print(line)
    out.file.flush()


_STYLES = {"rebalance": "cyan", "rejection": "red", "reset": "yellow"}


def _write_lines(events: "Sequence[Happening]", _to_ms: int) -> None:
    for one in events:
        print(msgspec.json.encode(one).decode())
    out.file.flush()
