"""Names of Kafka's groups and members here: legal, unique and readable."""

import re

from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model.coordinator_log.kafka_names import client_name, group_name, topic_name


@given(st.text(min_size=1, max_size=400))
def test_every_name_of_a_group_becomes_a_legal_one(name):
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,255}", group_name(name))


@given(st.text(min_size=1, max_size=400), st.text(max_size=400), st.none() | st.text(max_size=400))
def test_every_name_of_a_member_becomes_a_legal_one(member_id, client_id, instance):
    assert re.fullmatch(r"[A-Za-z0-9._@#:-]{1,255}", client_name(member_id, client_id, instance))


@given(st.text(max_size=400))
def test_every_name_of_a_topic_becomes_a_legal_one(name):
    assert re.fullmatch(r"[A-Za-z0-9._%|-]{1,249}", topic_name(name))


@given(st.sets(st.text(min_size=1, max_size=300), min_size=2, max_size=2))
def test_different_groups_have_different_names(names):
    one, other = names
    assert group_name(one) != group_name(other)


def test_a_legal_name_stays_as_it_is():
    assert group_name("orders-eu") == "orders-eu"
    assert client_name("rdkafka-0b6ff7c1-3c1e", "rdkafka", None) == "rdkafka-0b6ff7c1-3c1e"
    assert client_name("rdkafka-0b6ff7c1-3c1e", "rdkafka", "") == "rdkafka-0b6ff7c1-3c1e"


def test_long_names_with_the_same_beginning_stay_different():
    names = {group_name("x" * 300 + end) for end in "ab"}
    assert len(names) == 2
