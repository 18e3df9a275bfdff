"""`check` asks which pulls must be answered by now: only by time that has passed for the coordinator, too."""

from types import SimpleNamespace

import msgspec

from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model.events import Pull, Tick
from wakeroll_model.queue import Queue
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.questions.quality.unanswered_records import _awaited_in

TOPIC, ORDERS = "wakeroll.queues", Queue("orders", "", 0)
SIGNER = new_signer(key_to_sign(DEV_KEYS, "observer"))


def row(offset: int, second: int, value: bytes, key: bytes | None = None) -> SimpleNamespace:
    return SimpleNamespace(topic=TOPIC, partition=0, offset=offset, at_ms=second * 1_000, key=key, value=value)


def tick(offset: int, second: int) -> bytes:
    value = msgspec.json.encode(Tick(observer="o", uptime_ms=second * 1_000))
    return SIGNER.sign(TOPIC, 0, None, value, offset)


def test_a_copied_tick_lets_no_pull_be_due():
    """The coordinator ignores it; a rule that counted it would report a pull that is rightly still held."""
    names = {"group_id": "billing", "client_id": "c1", "instance_id": "1"}
    pull = Pull(request_id="1:1", queue=ORDERS, from_offset=5, timeout_ms=3_000, **names)
    first = tick(0, 0)
    log = [
        row(0, 0, first),
        row(1, 0, msgspec.json.encode(pull), ORDERS.key.encode()),
        row(2, 4, first),
        row(3, 8, first),
    ]

    assert list(_awaited_in(log)) == []
    assert [one.until_offset for one in _awaited_in([*log, row(4, 9, tick(4, 9))])] == [4]
