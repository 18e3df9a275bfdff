"""Answers from the state of all groups, which a `live` model follows.

From Kafka, it reads the newest snapshots of the tables, if there are any, then the control topics to their ends. From
the tables alone, it reads the newest snapshots and the archived records after them.
"""

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import structs
from rich.console import Console

from wakeroll.connection import Topics
from wakeroll.epoch_ms import now_ms
from wakeroll.errors import InvalidUsage, missing_extra
from wakeroll_model.signing import Keys
from wakeroll_pipeline.cli.open_ledger import reading, warehouse_of
from wakeroll_pipeline.ledger.known_groups import unknown_group, unknown_member
from wakeroll_pipeline.settings import Settings

if TYPE_CHECKING:
    from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
    from wakeroll_pipeline.live.followed_brokers import FollowedBrokers
    from wakeroll_pipeline.live.ledger_reader import Detail
    from wakeroll_pipeline.live.live_model import LiveModel
    from wakeroll_pipeline.live.view_structs import GroupView, Health


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch Python's garbage collection off meanwhile: with 100,000 members, it takes half of the time."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()


@contextmanager
def followed(settings: Settings, keys: Keys | None = None) -> Iterator["FollowedBrokers"]:
    """Follow the brokers of a deployment; the reading begins at once. `keys`: as for `followed_brokers`.

    The view reports outages, so the log lines about them are suppressed.

    Raises:
        InvalidUsage: a package is missing, or the settings are not valid.
    """
    try:
        from wakeroll_pipeline.live.followed_brokers import followed_brokers
    except ModuleNotFoundError as missing:
        raise missing_extra("a live answer", "ask", missing) from None
    logger = logging.getLogger("wakeroll_pipeline")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with followed_brokers(settings, keys=keys) as brokers:
            yield brokers
    finally:
        logger.setLevel(level)


@contextmanager
def live_model(settings: Settings, out: Console, keys: Keys | None = None) -> Iterator["LiveModel"]:
    """Provide the state of all groups at the end of the log, and keep following it.

    Args:
        settings: settings of the deployment, which name the brokers.
        out: shows a spinner while the log is read.
        keys: verify signed records; None: those of the settings.

    Raises:
        NotReachable: the log cannot be read.
        InvalidUsage: a package is missing, or the settings are not valid.
    """
    with followed(settings, keys) as brokers:
        with out.status("reading the log"):
            brokers.wait_until_current(threading.Event())
        yield brokers.model


@contextmanager
def group_model(
    settings: Settings,
    out: Console,
    group_id: str | None = None,
    at_ms: int | None = None,
    *,
    detail: "Detail" = "views",
) -> Iterator[tuple["LiveModel", "DuckLedger | None"]]:
    """Provide the state of all groups: live if brokers are named, else from the tables, with the ledger.

    Args:
        settings: settings of the deployment, which name the brokers or the home.
        out: shows a spinner while the log or the tables are read.
        group_id: the only group of which the model needs a summary and a view; None: it has those of all groups.
        at_ms: the moment in log time (epoch ms), inclusive; None: the end of the log.
        detail: the use of the model.

    Raises:
        InvalidUsage: there are no tables, or no records of that moment, or a moment of the brokers is named, or a
            package is missing.
        NotReachable: the log cannot be read.
        UnreadableTable: a table cannot be read.
    """
    if settings.bootstrap and at_ms is not None:
        raise InvalidUsage("--at reads the tables; leave out --bootstrap, which answers as of now")
    with without_collections():
        if settings.bootstrap:
            with live_model(settings, out) as model:
                yield model, None
        else:
            with _archived(settings, out, group_id, at_ms, detail=detail) as found:
                yield found


@contextmanager
def _archived(
    settings: Settings, out: Console, group_id: str | None, at_ms: int | None, *, detail: "Detail"
) -> Iterator[tuple["LiveModel", "DuckLedger"]]:
    """Provide the state of all groups at the end of the archived log, or at a moment: see `group_model`."""
    warehouse = warehouse_of(settings)
    try:
        from wakeroll_pipeline.ledger.shared_ledger import extent_of, refuse_outside
        from wakeroll_pipeline.live.ledger_reader import model_of, whole_ledger
    except ModuleNotFoundError as missing:
        raise missing_extra("reading the tables", "ask", missing) from None
    with ExitStack() as stack:
        with out.status("reading"), reading(warehouse):
            ledger = stack.enter_context(whole_ledger(warehouse))
            if at_ms is not None:
                refuse_outside(extent_of(ledger), at_ms)
            topics, partitions = Topics(settings.prefix), settings.partitions
            model = model_of(ledger, topics, partitions, at_ms, group_id=group_id, detail=detail)
            model.facts = structs.replace(model.facts, age_ms=max(now_ms() - model.now_ms, 0))
        yield model, ledger


def view_of(model: "LiveModel", group_id: str) -> "GroupView":
    """Return the view of a group.

    Raises:
        InvalidUsage: there is no such group; the message suggests similar names.
    """
    view = model.group_view(group_id)
    if view is None:
        raise InvalidUsage(unknown_group(group_id, model.names()))
    return view


def of_member(view: "GroupView", client_id: str) -> "GroupView":
    """Return the part of the view of a group about one member: its queues, those it waits for, failures, reports.

    In a broadcasting group, each member reads all queues of its topics.

    Raises:
        InvalidUsage: there is no such member; the message names some, or suggests similar names.
    """
    members = [one for one in view.members if one.client_id == client_id]
    if not members:
        raise InvalidUsage(unknown_member(client_id, view.summary.group_id, [one.client_id for one in view.members]))
    topics = {one.topic for one in members[0].subscriptions}
    is_broadcasting = view.summary.mode == "broadcasting"
    queues = [
        one
        for one in view.queues
        if client_id in (one.owner, one.next_owner) or (is_broadcasting and one.topic in topics)
    ]
    holds = [one for one in view.holds if one.client_id == client_id]
    failures = [one for one in view.failures if one.client_id == client_id]
    reports = [one for one in view.reports if one.client_id == client_id]
    return structs.replace(view, members=members, queues=queues, holds=holds, failures=failures, reports=reports)


def _tick_of(model: "LiveModel") -> int | None:
    """Return the time of the newest tick (epoch ms) in the shard of groups that lags most; None if there is none."""
    ticks = [one.shard.tick_ms for one in model.shards.values() if one.is_of_groups]
    return min((at_ms for at_ms in ticks if at_ms), default=None)


def provenance(model: "LiveModel", health: "Health") -> dict[str, Any]:
    """Return the age of a JSON answer, by this machine's clock and by the newest tick."""
    tick_ms = _tick_of(model)
    age_ms = None if tick_ms is None else max(now_ms() - tick_ms, 0)
    return {"source": health.source, "last_tick_ms": tick_ms, "tick_age_ms": age_ms, "notices": health.notices}
