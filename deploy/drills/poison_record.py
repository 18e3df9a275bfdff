"""Drill: a record that the coordinator cannot process.

Appends one record to the topic of the groups, as a faulty client would, and shows how an operator finds it: the rule
and the reason in the table of rejections, and the record itself. All groups go on. The record is a heartbeat of the
group `drill`; by default its epoch is text, which the coordinator rejects with the rule `bounds`. A record that makes
the state machine itself fail is rejected with the rule `internal`; only a bug can cause that.
"""

import json
import sys

from confluent_kafka import KafkaError, Message
from drill_steps import Drill, DrillFailed, drill_parser, perform

from wakeroll_pipeline.cli.settings_sources import load

GROUP = "drill"
INVALID = json.dumps({"type": "heartbeat", "group_id": GROUP, "client_id": "drill", "epoch": "none"})
_FLUSH_S = 30.0


def main(arguments: list[str]) -> int:
    """Do the drill."""
    parser = drill_parser("poison_record.py", __doc__, stop="")
    parser.add_argument("--value", default=INVALID, metavar="JSON", help="the record (default: %(default)s)")
    parser.add_argument("--rule", default="bounds", help="the rule that must reject it (default: %(default)s)")
    given = parser.parse_args(arguments)

    def steps(drill: Drill) -> None:
        topic, partition, offset = _append(drill, given.value)
        drill.say(f"appended {given.value} as record {offset} of {topic}-{partition}")
        place = f"cause.topic = '{topic}' and cause.partition = {partition} and cause['offset'] = {offset}"
        query = f"select rule, group_id, client_id, detail from rejections where {place}"
        drill.until("the table of rejections has it", lambda: bool(drill.query(query)))
        drill.wakeroll("sql", query)
        [row] = drill.query(query)
        if row["rule"] != given.rule:
            raise DrillFailed(f"the rule is {row['rule']!r}, expected {given.rule!r}")
        drill.wakeroll("sql", f"select at_ms, key, value from events where {_of_events(topic, partition, offset)}")
        drill.wakeroll("doctor", expected=1 if given.rule == "internal" else 0)
        seen = drill.rows("decisions")
        drill.until("the coordinator goes on: new decisions are in the tables", lambda: drill.rows("decisions") > seen)

    return perform(given, steps)


def _of_events(topic: str, partition: int, offset: int) -> str:
    return f"topic = '{topic}' and partition = {partition} and \"offset\" = {offset}"


def _append(drill: Drill, value: str) -> tuple[str, int, int]:
    """Append the record; return its topic, partition and offset."""
    connection = load(drill.environment).connection
    stored: list[tuple[str, int, int]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            stored.append((str(message.topic()), message.partition() or 0, message.offset() or 0))

    producer = connection.producer()
    producer.produce(connection.topics.groups, value.encode(), key=GROUP.encode(), on_delivery=delivered)
    producer.flush(_FLUSH_S)
    if not stored:
        raise DrillFailed("the broker did not acknowledge the record")
    return stored[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
