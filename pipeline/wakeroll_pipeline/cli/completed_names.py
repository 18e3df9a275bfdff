"""Names of groups for the completion of a shell: from the brokers in the command line, or else from the tables.

A shell waits for the answer at each Tab. So names that are not found within a second are left out, and errors are
ignored.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import typer

from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.settings import Settings

ENOUGH_S = 1.0
"""Longest time for an answer (s)."""
_NEWEST = 1_000
"""Number of the newest records of each partition that are read: a live member appends a heartbeat every few seconds."""
_SETTINGS = ("config", "home", "prefix", "keys", "kafka_config", "bootstrap")


def is_completing() -> bool:
    """Return whether a shell has started this process to complete a command line."""
    return "_WAKEROLL_COMPLETE" in os.environ


def words_to_complete() -> list[str]:
    """Return the complete words after `wakeroll` on the command line that a shell completes."""
    if "COMP_WORDS" in os.environ:  # bash; it has the number of the word at the cursor too
        return os.environ["COMP_WORDS"].split()[1 : int(os.environ.get("COMP_CWORD", "1"))]
    text = os.environ.get("_TYPER_COMPLETE_ARGS", "")  # zsh and fish
    words = text.split()[1:]
    return words if text.endswith(" ") else words[:-1]


def groups_beginning_with(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of groups that begin with a text, sorted; those that are found within a second."""
    names: set[str] = set()
    finder = threading.Thread(target=_quietly, args=(lambda: _find(dict(context.params), names.add),), daemon=True)
    finder.start()
    finder.join(ENOUGH_S)
    return sorted(name for name in list(names) if name.startswith(incomplete))


def _quietly(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:
        return


def _find(given: dict[str, Any], add: Callable[[str], None]) -> None:
    named = {name: given.get(name) for name in _SETTINGS}
    settings = load(os.environ, named.pop("config"), **named)
    if settings.bootstrap:
        _find_live(settings, add)
    else:
        _find_in_tables(settings, add)


def _find_in_tables(settings: Settings, add: Callable[[str], None]) -> None:
    from wakeroll_model.rows import SNAPSHOTS
    from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
    from wakeroll_pipeline.ledger.known_groups import group_names

    with duck_ledger(settings.warehouse, only=SNAPSHOTS) as opened, opened.within() as whole:
        for name in group_names(whole):
            add(name)


def _find_live(settings: Settings, add: Callable[[str], None]) -> None:
    """Add the groups of the newest records, whose keys are names of groups."""
    from wakeroll_pipeline.kafka.log_spans import Span, read_spans
    from wakeroll_pipeline.kafka.topic_admin import Cluster, Racks

    connection, topic = settings.connection, settings.connection.topics.groups
    cluster = Cluster(connection, patience_s=ENOUGH_S)
    racks = cluster.racks([topic])[topic]
    if not isinstance(racks, Racks):
        return
    offsets = cluster.all_offsets((topic, number) for number in racks)
    spans = {place: Span(max(first, end - _NEWEST), end) for place, (first, end) in offsets.items()}
    until_s = time.monotonic() + ENOUGH_S
    for message in read_spans(connection, spans):
        if key := message.key():
            add(key.decode() if isinstance(key, bytes) else key)
        if time.monotonic() > until_s:
            return
