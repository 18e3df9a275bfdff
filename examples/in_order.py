"""Messages in order: the state of an account follows its events, one after the other, in a group of any size.

With ``orderly``, a queue has one call at a time, and a queue is assigned to another member only when its owner has
released it. An event that fails is retried in place every second: the later events of its queue wait for it.

    python examples/in_order.py localhost:9092 accounts.db
"""

import sqlite3
import sys
from contextlib import closing

from confluent_kafka import Message

from wakeroll import Consumer

TABLES = """
create table if not exists accounts (name text primary key, state text);
create table if not exists history (name text, state text, place text unique);
"""
NEXT = {None: ("open",), "open": ("blocked", "closed"), "blocked": ("open", "closed"), "closed": ()}
"""State -> the states that may follow."""


def apply(database: sqlite3.Connection, message: Message) -> None:
    """Apply an event: its key is the account, its value is the new state.

    Raises:
        LookupError: the state may not follow the current one.
    """
    account, state = (message.key() or b"").decode(), (message.value() or b"").decode()
    place = f"{message.topic()}-{message.partition()}@{message.offset()}"
    with database:
        if database.execute("select 1 from history where place = ?", (place,)).fetchone():
            return  # delivered again after a crash
        row = database.execute("select state from accounts where name = ?", (account,)).fetchone()
        before = row[0] if row else None
        if state not in NEXT[before]:
            raise LookupError(f"account {account} is {before}; it cannot be {state}")
        database.execute("insert or replace into accounts values (?, ?)", (account, state))
        database.execute("insert into history values (?, ?, ?)", (account, state, place))


def main(bootstrap: str, path: str) -> None:
    """Run until the process is stopped."""

    def handle(messages: list[Message]) -> None:
        with closing(sqlite3.connect(path, timeout=60)) as database:  # a connection belongs to one thread
            for message in messages:
                apply(database, message)

    with closing(sqlite3.connect(path, timeout=60)) as database:
        database.executescript(TABLES)
    with Consumer("accounts", ["account-events"], bootstrap, consume_from="first", orderly=True) as consumer:
        consumer.run(handle, max_retries=100)


if __name__ == "__main__":
    main(*sys.argv[1:])
