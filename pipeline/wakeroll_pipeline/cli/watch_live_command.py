"""The `watch` command: the live view of all groups, or of one, in a terminal or as a stream of lines."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer
from msgspec import structs
from rich.console import Console
from rich.live import Live
from rich.text import Text

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.completed_names import groups_beginning_with
from wakeroll_pipeline.cli.group_screens import group_screen, groups_screen, head_lines
from wakeroll_pipeline.cli.live_answer import followed, group_model, without_collections
from wakeroll_pipeline.cli.options import BrokerOptions
from wakeroll_pipeline.cli.output import Output, quiet_if_closed
from wakeroll_pipeline.cli.text_table import Line, write_lines
from wakeroll_pipeline.ledger.known_groups import unknown_group
from wakeroll_pipeline.live.view_structs import GroupsView, GroupView, Health
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.serve.page_queries import GroupsQuery

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel
    from wakeroll_pipeline.live.view_structs import GroupView

out = Output(highlight=False)
complain = Console(stderr=True, highlight=False, soft_wrap=True)

_LOOK_S = 0.2
"""Interval of the checks for a change of the view or of the size of the terminal (s)."""
_REDRAW_S = 1.0
"""A terminal is redrawn after this time without a change (s): ages grow."""

WatchedGroup = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP]", help="Show this group only; default: all groups.", autocompletion=groups_beginning_with
    ),
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON document per change, one per line.")]
Once = Annotated[bool, typer.Option("--once", help="Print the current state once, and end.")]


def watch(
    deployment: BrokerOptions,
    group: WatchedGroup = None,
    once: Once = False,
    as_json: AsJsonLines = False,
) -> None:
    """Show the groups live: verdicts, members, owners, lag, the last rebalances.  Ctrl-C ends it.

    In a pipe, the state is printed again after each change.  Without brokers, the end of the archived log is shown.
    """
    settings = deployment.settings()
    stop = StopSignals(at_once=_leave).asked
    if not settings.bootstrap:
        with quiet_if_closed(), group_model(settings, out, group) as (model, _):
            _print_once(_Watched(model, group), as_json)
        return
    with quiet_if_closed(), followed(settings) as brokers:
        watched = _Watched(brokers.model, group)
        if out.is_terminal and not out.is_dumb_terminal and not once and not as_json:
            _show(watched, stop)
            return
        with without_collections():
            is_current = brokers.wait_until_current(stop)
        if is_current and once:
            _print_once(watched, as_json)
        elif is_current:
            _stream(watched, as_json, stop)


def _leave(_number: int) -> NoReturn:
    """At the second Ctrl-C, leave by an exception, so that the terminal is restored."""
    raise KeyboardInterrupt


class _Watched:
    """The view that is watched: all groups, or one."""

    def __init__(self, model: "LiveModel", group: str | None) -> None:
        self.model = model
        self.group = group

    def view(self) -> "GroupsView | GroupView | None":
        """Return the view; None if there is no such group."""
        return self.model.groups_view() if self.group is None else self.model.group_view(self.group)

    def unknown(self) -> str:
        """Return the sentence about a group that does not exist."""
        return unknown_group(self.group, self.model.names())


def _print_once(watched: _Watched, as_json: bool) -> None:
    view = watched.view()
    if view is None:
        raise InvalidUsage(watched.unknown())
    _write(view, as_json)


def _stream(watched: _Watched, as_json: bool, stop: threading.Event) -> None:
    """Write the view once per change, until the stop."""
    from wakeroll_pipeline.cli.watch_live_command import essence

    last: Any = None
    while True:
        view = watched.view()
        if view is None:
            if last != "unknown":
                last = "unknown"
                complain.print(f"{watched.unknown()}; waiting", markup=False)
        elif (new := essence(view)) != last:
            if isinstance(last, tuple) and not as_json:
                out.print()
            last = new
            _write(view, as_json)
        if stop.wait(_LOOK_S):
            return


def _write(view: "GroupsView | GroupView", as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(view).decode(), flush=True)
        return
    write_lines(out, _screen(view, None))
    out.file.flush()


def _show(watched: _Watched, stop: threading.Event) -> None:
    """Show the view on the whole terminal until the stop; its last state remains visible."""
    with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        _redraw(watched, stop, lambda: live.update(_now(watched), refresh=True))
    out.print(_now(watched))


def _redraw(watched: _Watched, stop: threading.Event, draw: Callable[[], None]) -> None:
    drawn: Any = None
    drawn_s = 0.0
    while not stop.is_set():
        state = (watched.model.version, watched.model.facts.read, out.size)
        if state != drawn or time.monotonic() - drawn_s >= _REDRAW_S:
            draw()
            drawn, drawn_s = state, time.monotonic()
        stop.wait(_LOOK_S)


def _now(watched: _Watched) -> Text:
    view = watched.view()
    if view is not None:
        lines = _screen(view, out.size.height)
    else:
        health = watched.model.health()
        lines = head_lines(health, out.size.width)
        if health.state != "starting" and health.as_of_ms:
            lines.append(f"{watched.unknown()}; waiting")
    return Text("\n", no_wrap=True, overflow="crop").join(Text(one) if isinstance(one, str) else one for one in lines)


def _screen(view: "GroupsView | GroupView", height: int | None) -> list[Line]:
    width = out.size.width
    if isinstance(view, GroupsView):
        ordered = structs.replace(view, groups=GroupsQuery().ordered(view.groups))
        return groups_screen(ordered, width, height)
    return group_screen(view, width, height, is_unicode=out.encoding.startswith("utf"))


def essence(view: GroupsView | GroupView) -> tuple[Any, ...]:
    """Return the part of a view whose change makes it worth printing again.

    Log times, the ages of ticks, and the times of heartbeats and held pulls are left out, because they change all the
    time. So are curves of the lag, which change only with the lag, and rates, which change for a while after it.
    """
    if isinstance(view, GroupsView):
        return (*_of_health(view.health), [structs.replace(one, **_NO_RATES) for one in view.groups])
    members = [structs.replace(one, seen_ms=0, session_ends_ms=0, catch_up_ms=None) for one in view.members]
    queues = [
        structs.replace(one, samples=[], trend="none", committed_ms=None, is_held=False, **_NO_RATES)
        for one in view.queues
    ]
    return (
        *_of_health(view.health),
        structs.replace(view.summary, **_NO_RATES),
        members,
        queues,
        view.rebalances,
        view.rejections,
        view.failures,
        view.reports,
        view.settings,
    )


_NO_RATES: Mapping[str, None] = {"arriving_per_s": None, "consumed_per_s": None, "catch_up_ms": None}


def _of_health(health: Health) -> tuple[Any, ...]:
    return health.state, [one.kind for one in health.notices]
