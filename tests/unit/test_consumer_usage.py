"""Wrong usage of the consumer that needs no broker to be noticed: one clear sentence each."""

import re
import socket
import time

import pytest

from wakeroll import Admin, Consumer, DeadLetters, InvalidUsage, NotReachable, Producer, Sql92, argument_checks

NOWHERE = "127.0.0.1:1"


def nested(depth: int) -> dict[str, object]:
    """Return an object in an object, and so on."""
    found: dict[str, object] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"group_id": "a b"}, r"group_id is 'a b'; it must be 1 to 255 characters of A-Za-z0-9\._-"),
        ({"group_id": ""}, r"group_id is ''; it must be 1 to 255 characters"),
        ({"group_id": "billing@eu"}, r"group_id is 'billing@eu'; it must be 1 to 255 characters"),
        ({"client_id": "c/1"}, r"client_id is 'c/1'; it must be 1 to 255 characters"),
        ({"client_id": ""}, r"client_id is ''; it must be 1 to 255 characters"),
        ({"topics": "orders"}, r"topics is 'orders'; it must be a list of names, like \['orders'\]"),
        ({"topics": []}, r"topics is empty; name at least one topic"),
        ({"topics": ["or ders"]}, r"a topic is 'or ders'; it must be 1 to 249 characters"),
        ({"topics": {"orders": None}}, r"the expression of orders is None; it must be text"),
        ({"topics": {"orders": 7}}, r"the expression of orders is 7; it must be text"),
        ({"topics": {"orders": b"paid"}}, r"the expression of orders is b'paid'; it must be text"),
        ({"topics": {"orders": "||"}}, r"cannot parse the expression of orders: "),
        ({"topics": {"orders": Sql92("amount >")}}, r"cannot parse the expression of orders: "),
        ({"bootstrap": []}, r"bootstrap is empty; it must name a broker"),
        ({"bootstrap": [NOWHERE, "a"]}, r"bootstrap is '127\.0\.0\.1:1,a'; it must be host:port"),
        (
            {"bootstrap": [NOWHERE, 7]},
            r"bootstrap is \['127\.0\.0\.1:1', 7\]; it must be .*, or a list of such addresses",
        ),
        ({"bootstrap": 9092}, r"bootstrap is 9092; it must be host:port\[,host:port\], or a list of such addresses"),
        ({"bootstrap": None}, r"bootstrap is None; it must be"),
        ({"bootstrap": ""}, r"bootstrap is empty; it must name a broker, like 'localhost:9092'"),
        ({"consume_from": "newest"}, r"consume_from is 'newest'; it must be first, last or timestamp"),
        ({"consume_from": "timestamp"}, r"'timestamp' requires a time in epoch ms"),
        ({"consume_from_ms": 5}, r"consume_from is 'last' and consume_from_ms is 5"),
        (
            {"consume_from": "timestamp", "consume_from_ms": -1},
            r"consume_from_ms is -1; it must be a whole number",
        ),
        ({"strategy": "A VG"}, r"strategy is 'A VG'; it must be 1 to 64 characters"),
        ({"strategy_params": {"a": object()}}, r"strategy_params is .*; each value must be text"),
        ({"strategy_params": nested(40)}, r"strategy_params is .{200}; .*must be"),
        (
            {"strategy_params": nested(30_000)},
            r"strategy_params is (a dict that is nested too deeply|\{'a'.+must be)",
        ),
        ({"strategy_params": ["a"]}, r"strategy_params is \['a'\]; it must be an object"),
        ({"commit_interval": 0}, r"commit_interval is 0; it must be more than 0 .*, or None"),
        ({"commit_interval": 5_000_000.0}, r"at most 86400 seconds"),
        ({"weight": 0}, r"weight is 0; it must be a number of more than 0"),
        ({"kafka_config": {"no.such.setting": "1"}}, r"cannot be set: no\.such\.setting \(not among"),
    ],
)
def test_a_wrong_argument_is_named(arguments, sentence):
    """Before anything is connected: a typo must not look like a broker that does not answer."""
    given = {"group_id": "billing", "topics": ["orders"], "bootstrap": NOWHERE, **arguments}

    with pytest.raises(InvalidUsage, match=sentence):
        Consumer(**given)


def test_a_broker_that_does_not_answer_is_named_within_the_time_given():
    began = time.monotonic()

    with pytest.raises(
        NotReachable, match=r"no Kafka broker answered at 127\.0\.0\.1:1 within 0\.5 s \(.*refused.*running\?"
    ):
        Consumer("billing", ["orders"], NOWHERE, connect_timeout=0.5)

    assert time.monotonic() - began < 5


@pytest.mark.parametrize("host", ["build-7.example.com", "Jürgens Laptop", "x" * 300, "[::1]"])
def test_a_made_up_client_id_keeps_to_the_declared_pattern(monkeypatch, host):
    """Hosts have names that a client may not have."""
    monkeypatch.setattr(socket, "gethostname", lambda: host)

    made = argument_checks.client_id_of(None)

    assert argument_checks.client_id_of(made) == made
    assert re.search(r"@\d+@[0-9a-f]{8}$", made)


def test_topics_may_carry_an_expression():
    """A list wants everything; a name given twice is wanted once."""
    listed = argument_checks.subscriptions_of(["orders", "payments", "orders"])

    assert [(wanted.topic, wanted.expression) for wanted in listed] == [("orders", "*"), ("payments", "*")]
    assert argument_checks.subscriptions_of({"orders": "TagA || TagB"})[0].expression == "TagA || TagB"
    by_properties = argument_checks.subscriptions_of({"orders": Sql92("amount > 10")})[0]
    assert (by_properties.expression, by_properties.expression_type) == ("amount > 10", "SQL92")


@pytest.mark.parametrize("addresses", [[NOWHERE, "127.0.0.1:2"], (NOWHERE, "127.0.0.1:2"), f"{NOWHERE},127.0.0.1:2"])
@pytest.mark.parametrize("kind", [Producer, Admin, DeadLetters, Consumer])
def test_brokers_may_be_named_in_a_list_as_in_other_clients(kind, addresses):
    arguments = {Consumer: ("billing", ["orders"]), DeadLetters: ("billing",)}.get(kind, ())
    with pytest.raises(NotReachable, match=r"no Kafka broker answered at 127\.0\.0\.1:1,127\.0\.0\.1:2 "):
        kind(*arguments, addresses, connect_timeout=0.5).groups()


@pytest.mark.parametrize("address", ["nonsense", "unix:relative", "unix:", "unix:/" + 107 * "x"])
@pytest.mark.parametrize("how", ["last_will", "WAKEROLL_LAST_WILL"])
def test_the_address_of_an_executor_is_checked_before_any_connection(monkeypatch, how: str, address: str):
    setting = address if how == "last_will" else True
    monkeypatch.setenv("WAKEROLL_LAST_WILL", "off" if how == "last_will" else address)
    with pytest.raises(InvalidUsage, match=rf"^{how} is '{address}'; it must be an address of at most 107 bytes"):
        Consumer("billing", ["orders"], NOWHERE, last_will=setting, connect_timeout=0.1)
