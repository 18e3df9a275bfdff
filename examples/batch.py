"""Batches: one call stores up to 500 orders in one transaction of SQLite, and names those that it cannot store.

An order that cannot be parsed is a dead letter at once. An order whose customer is not known yet is retried a second
later, and the others of its batch are stored.

    python examples/batch.py localhost:9092 orders orders.db
"""

import json
import sqlite3
import sys
from contextlib import closing

from confluent_kafka import Message

from wakeroll import Consumer, DeadLetter, Retry

TABLES = """
create table if not exists customers (name text primary key);
create table if not exists orders (id integer primary key, customer text, amount integer);
"""


def store(database: sqlite3.Connection, messages: list[Message]) -> list[Retry | DeadLetter]:
    """Store a batch of orders; return the ones that failed."""
    rows, early, wrong = [], [], []
    known = {name for (name,) in database.execute("select name from customers")}
    for message in messages:
        try:
            order = json.loads(message.value() or b"")
            row = int(order["id"]), str(order["customer"]), int(order["amount"])
        except (ValueError, TypeError, KeyError):
            wrong.append(message)
            continue
        if row[1] in known:
            rows.append(row)
        else:
            early.append(message)
    with database:  # one transaction for the whole batch; an order that is delivered again replaces itself
        database.executemany("insert or replace into orders values (?, ?, ?)", rows)
    failed: list[Retry | DeadLetter] = []
    if early:
        failed.append(Retry(level=1, messages=early, reason="no such customer yet"))
    if wrong:
        failed.append(DeadLetter(messages=wrong, reason="not an order"))
    return failed


def main(bootstrap: str, topic: str, path: str) -> None:
    """Run until the process is stopped."""

    def handle(messages: list[Message]) -> list[Retry | DeadLetter]:
        with closing(sqlite3.connect(path, timeout=60)) as database:  # a connection belongs to one thread
            return store(database, messages)

    with closing(sqlite3.connect(path, timeout=60)) as database:
        database.executescript(TABLES)
    with Consumer("archive", [topic], bootstrap, consume_from="first") as consumer:
        consumer.run(handle, workers=2, batch_size=500)


if __name__ == "__main__":
    main(*sys.argv[1:])
