"""Changes through the page, on a real broker: resets, settings, and forms that are not accepted."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from tests.support.systems.changing_page import PASSWORD, USER, ChangingPage, changing_page
from tests.support.systems.page_client import Answer, PageClient
from tests.support.systems.web_site import answering, served
from tests.support.waiting import wait_until
from wakeroll import Consumer, ConsumerFenced
from wakeroll.keys import add_key, new_key, read_keys
from wakeroll_model.decisions import Rebalance
from wakeroll_model.events import Configure, Kick, Reset
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.user_file import add_user, grant
from wakeroll_pipeline.serve.changes.change_pages import ChangePages
from wakeroll_pipeline.serve.changes.change_work import Work
from wakeroll_pipeline.serve.web_app import WebApp
from wakeroll_pipeline.serve.web_server import following

pytestmark = pytest.mark.e2e

BY = f"{USER}@127.0.0.1 via page"


@pytest.fixture(scope="module")
def plane(broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChangingPage]:
    with changing_page(broker.bootstrap, tmp_path_factory.mktemp("changes")) as running:
        yield running


@pytest.fixture
def client(plane: ChangingPage) -> PageClient:
    """A user who is logged in."""
    client = PageClient(plane.address)
    assert client.log_in(USER, PASSWORD).status == 303
    return client


@pytest.fixture
def group(plane: ChangingPage, client: PageClient, group_id: str) -> Iterator[Consumer]:
    with member(plane, client, group_id) as consumer:
        yield consumer


@pytest.fixture(scope="module")
def unchanged(plane: ChangingPage) -> Iterator[Consumer]:
    """A group that no test changes."""
    client = PageClient(plane.address)
    with member(plane, client, "unchanged") as consumer:
        yield consumer


@contextmanager
def member(plane: ChangingPage, client: PageClient, group_id: str) -> Iterator[Consumer]:
    """Run the only member of a group, which has consumed and committed the two messages of its topic."""
    topic = plane.coordinator.topic(1)
    plane.coordinator.produce(topic, 0, 2)
    connection = plane.coordinator.connection
    with Consumer(
        group_id, [topic], connection.bootstrap, client_id="c1", prefix=connection.topics.prefix, consume_from="first"
    ) as consumer:
        wait_until(lambda: read_and_committed(plane, consumer, topic), "both messages are committed")
        wait_until(lambda: shown(client, group_id), "the page shows the committed offset")
        yield consumer


def read_and_committed(plane: ChangingPage, consumer: Consumer, topic: str) -> bool:
    consumer.poll(0.1)
    consumer.commit(10)
    return plane.coordinator.offsets(consumer.group_id, topic) == {0: 2}


def shown(client: PageClient, group_id: str) -> bool:
    queues = msgspec.json.decode(client.get(f"/api/groups/{group_id}").text).get("queues") or [{}]
    return queues[0].get("committed_offset") == 2


def outcome(client: PageClient, answer: Answer) -> Answer:
    """Follow an accepted form to its change, and wait until that has ended."""
    assert answer.status == 303, answer.plain
    return wait_until(
        lambda: (page := client.get(answer.location)) and 'data-state="waiting"' not in page.text and page,
        "the change has ended",
    )


def requests(plane: ChangingPage, group_id: str) -> list[Reset | Configure | Kick]:
    heard = tuple(plane.coordinator.heard)
    return [one for one in heard if isinstance(one, Reset | Configure | Kick) and one.group_id == group_id]


def test_a_reset_is_shown_carried_out_and_on_record(plane, client, group):
    path = f"/groups/{group.group_id}/change/reset"
    plan = client.get(f"{path}?to=first")
    assert plan.status == 200
    assert "Messages to read again 2" in plan.plain
    assert requests(plane, group.group_id) == []

    ended = outcome(client, client.post(path, plan.hidden(path)))

    assert "Done: the offsets are reset, in epoch" in ended.plain
    assert [one.by for one in requests(plane, group.group_id)] == [BY]
    wait_until(lambda: BY in client.get(f"/groups/{group.group_id}").plain, "the page names the operator")
    rows = msgspec.json.decode(client.get(f"/api/groups/{group.group_id}").text)["rebalances"]
    assert [row["by"] for row in rows if row["trigger"] == "reset"] == [BY]


def test_the_next_message_is_skipped_alone(plane, client, group):
    """Its plan says which message that is; the member reads on behind it."""
    path = f"/groups/{group.group_id}/change/reset"
    (topic,) = {queue.topic for queue in group.assignment()}
    plane.coordinator.produce(topic, 0, 1)
    plan = client.get(f"{path}?to=skip&queue={topic}-0")
    assert plan.status == 200, plan.plain
    assert f"Reset {group.group_id} past the message 2" in plan.plain
    assert "Messages to skip 1" in plan.plain
    assert "the message 2 has no key" in plan.plain

    assert "Done" in outcome(client, client.post(path, plan.hidden(path))).plain
    assert [one.offsets[0].offset for one in requests(plane, group.group_id)] == [3]
    assert plane.coordinator.offsets(group.group_id, topic) == {0: 3}


def test_a_form_works_once(plane, client, group):
    path = f"/groups/{group.group_id}/change/reset"
    fields = client.get(f"{path}?to=first").hidden(path)
    first = client.post(path, fields)
    again = client.post(path, fields)

    assert again.status == 409
    assert f'<a href="{first.location}">Show the change</a>' in again.text
    outcome(client, first)
    assert "This form was already sent; nothing was sent again" in again.plain
    assert len(requests(plane, group.group_id)) == 1


def test_a_plan_that_has_changed_is_shown_again_and_not_executed(plane, client, group):
    """Offset 2 was the present one; now it would skip nothing, but read a message again."""
    path = f"/groups/{group.group_id}/change/reset"
    fields = client.get(f"{path}?to=offset&offset=2").hidden(path)
    (topic,) = {queue.topic for queue in group.assignment()}
    plane.coordinator.produce(topic, 0, 1)
    wait_until(lambda: poll_to(plane, group, topic, 3), "the member has committed the third message")

    answer = client.post(path, fields)

    assert answer.status == 409
    assert "the plan has changed since you saw it, so nothing was reset" in answer.plain
    assert requests(plane, group.group_id) == []
    assert "Done" in outcome(client, client.post(path, answer.hidden(path))).plain


def poll_to(plane: ChangingPage, consumer: Consumer, topic: str, offset: int) -> bool:
    consumer.poll(0.1)
    consumer.commit(10)
    return plane.coordinator.offsets(consumer.group_id, topic) == {0: offset}


def test_members_that_commit_do_not_change_the_plan(plane, client, group):
    """Otherwise nobody could reset a group whose members are busy."""
    path = f"/groups/{group.group_id}/change/reset"
    fields = client.get(f"{path}?to=first").hidden(path)
    (topic,) = {queue.topic for queue in group.assignment()}
    plane.coordinator.produce(topic, 0, 1)
    wait_until(lambda: poll_to(plane, group, topic, 3), "the member has committed the third message")

    assert "Done" in outcome(client, client.post(path, fields)).plain


def test_settings_are_reviewed_and_changed(plane, client, group):
    path = f"/groups/{group.group_id}/change/settings"
    review = client.get(f"{path}?handover=eager&settle_ms=2000&strategy=SPREAD&strategy_params=")
    assert "handover cooperative eager" in review.plain
    assert requests(plane, group.group_id) == []

    ended = outcome(client, client.post(path, review.hidden(path)))

    assert "Done: the settings are changed" in ended.plain
    (asked,) = requests(plane, group.group_id)
    assert (asked.handover, asked.settle_ms, asked.strategy, asked.by) == ("eager", 2_000, "SPREAD", BY)
    assert asked.max_members is msgspec.UNSET
    wait_until(lambda: f"requested by {BY}" in client.get(f"/groups/{group.group_id}").plain, "the page names mia")


def test_a_rebalance_is_requested(plane, client, group):
    forms = client.get(f"/groups/{group.group_id}/change")
    path = f"/groups/{group.group_id}/change/rebalance"
    ended = outcome(client, client.post(path, forms.hidden(path)))

    assert "Done: the group is rebalanced" in ended.plain
    decided = [one for one in plane.coordinator.decided if isinstance(one, Rebalance) and one.trigger == "config"]
    assert group.group_id in {one.group_id for one in decided}


def test_a_client_is_kicked_kept_out_and_let_in_again(plane, client, group):
    """The review says what will happen; the consumer learns who it was."""
    path = f"/groups/{group.group_id}/change/kick"
    review = client.get(f"{path}?client=c1&keep_out=10m&reason=it+hangs")
    assert review.status == 200
    assert "Queues 1" in review.plain
    assert "If it lives, it hands its queues over and is removed then." in review.plain
    assert "No process with this client id may join for 10m." in review.plain
    assert requests(plane, group.group_id) == []

    ended = outcome(client, client.post(path, review.hidden(path)))

    assert (
        f"Done: c1 must leave: kicked by {BY}: it hangs; kept out for 600000 ms; if it lives, it hands" in ended.plain
    )
    (asked,) = requests(plane, group.group_id)
    assert (asked.client_id, asked.keep_out_ms, asked.reason, asked.by) == ("c1", 600_000, "it hangs", BY)
    with pytest.raises(ConsumerFenced) as fenced:
        wait_until(lambda: False, "it is fenced", between=lambda: group.poll(0.1))
    assert (fenced.value.reason, fenced.value.by) == ("kicked", BY)
    kept_out = f"kicked by {BY} (it hangs)"
    wait_until(lambda: kept_out in client.get(f"/groups/{group.group_id}").plain, "the page names who is kept out")

    forms = client.get(f"/groups/{group.group_id}/change")
    again = f"/groups/{group.group_id}/change/readmit"
    ended = outcome(client, client.post(again, forms.hidden(again)))

    assert "Done: c1 may join again" in ended.plain
    wait_until(lambda: kept_out not in client.get(f"/groups/{group.group_id}").plain, "nobody is kept out")


def test_a_member_is_asked_what_it_does(client, group):
    """The process of the member answers with the stack of the thread that polls; the page of the group keeps it."""
    path = f"/groups/{group.group_id}/change/inspect"
    review = client.get(f"{path}?client=c1")
    assert (review.status, "even if all its handlers hang" in review.plain) == (200, True)

    ended = outcome(client, client.post(path, review.hidden(path)))

    assert "Done: c1 has answered" in ended.plain
    assert "calls at work: " in ended.plain
    shown = "c1 reported what it does at"
    wait_until(lambda: shown in client.get(f"/groups/{group.group_id}").plain, "the page of the group has the report")


def test_an_empty_group_is_deleted_after_a_review(plane, client):
    """A group with members has no such form, and a request for one is refused."""
    group_id = f"gone-{uuid.uuid4().hex[:6]}"
    path = f"/groups/{group_id}/change/delete"
    with member(plane, client, group_id):
        assert "It can be deleted when it is empty." in client.get(f"/groups/{group_id}/change").plain
        refused = client.get(path)
        assert (refused.status, "the group has members, such as c1" in refused.plain) == (400, True)
    wait_until(lambda: client.get(f"{path}?reason=unused").status == 200, "the group is empty")
    review = client.get(f"{path}?reason=unused")
    assert "Committed offsets 1" in review.plain

    ended = outcome(client, client.post(path, review.hidden(path)))

    assert f"Done: the group is deleted by {BY}: unused, offsets of 1 queues" in ended.plain
    wait_until(lambda: client.get(f"/groups/{group_id}").status == 404, "the page has no such group")


def test_the_list_of_members_offers_a_kick_of_each(client, group):
    """A reader of the page has to log in first."""
    path = f"/groups/{group.group_id}/change/kick?client=c1"
    wait_until(lambda: f'href="{path}"' in client.get(f"/groups/{group.group_id}").text, "the page has the member")
    review = client.get(path)

    assert review.status == 200
    assert "A process that is started again joins at once." in review.plain


@pytest.mark.parametrize(
    ("place", "query", "sentence"),
    [
        ("reset", "", "the target is ''"),
        ("reset", "to=everywhere", "the target is 'everywhere'"),
        ("reset", "to=offset&offset=-1", "the offset is '-1'"),
        ("reset", "to=offset&offset=99999999999999999999", "the offset is"),
        ("reset", "to=offset&offset=9223372036854775807", "offset 9223372036854775807"),
        ("reset", "to=first&offset=5", "the field offset has '5', but the target is 'first'"),
        ("reset", "to=skip", "name the queue, like orders-3"),
        ("reset", "to=time&time=yesterday", "'yesterday' is not a time"),
        ("reset", "to=first&queue=x", "'x' is not a queue"),
        ("reset", "to=first&topic=%3Cscript%3E", "topic is '<script>'"),
        ("reset", "to=first&topic=nothing-here", "no topic nothing-here"),
        ("kick", "", "client is ''"),
        ("kick", "client=c9", "the client 'c9' is no member; members: c1"),
        ("kick", "client=c1&keep_out=soon", "the time to keep the client out is 'soon'"),
        ("kick", "client=%3Cscript%3E", "client is '<script>'"),
        ("settings", "", "no setting is named"),
        ("settings", "settle_ms=1.5", "settle_ms is '1.5'"),
        ("settings", "strategy=BEST", "no strategy 'BEST'"),
        ("settings", "handover=slow", "handover is 'slow'"),
        ("settings", "strategy_params=%5B%5D", "strategy_params is '[]'"),
        ("settings", "settle_ms=999999999", "settle_ms"),
        ("settings", "slices=orders%3D3", "slices: orders is 3; it must be a power of two"),
        ("settings", "slices=orders", "slices is 'orders'; it must be TOPIC=N"),
    ],
)
def test_a_field_that_is_not_valid_is_explained_beside_its_form(client, unchanged, place, query, sentence):
    answer = client.get(f"/groups/{unchanged.group_id}/change/{place}?{query}")

    assert answer.status == 400
    assert f'id="{place}-problem"' in answer.text
    assert sentence in answer.plain
    assert "<script>" not in answer.text


def test_settings_that_the_coordinator_rejects_say_why(client, group):
    path = f"/groups/{group.group_id}/change/settings"
    review = client.get(f"{path}?heartbeat_ms=60000")
    ended = outcome(client, client.post(path, review.hidden(path)))

    assert "Refused: the coordinator rejected the request (settings): session_timeout_ms would be" in ended.plain


def test_an_unknown_group_and_an_unknown_change_are_told(client):
    assert client.get("/groups/nobodys/change").status == 404
    assert "There is no group 'nobodys'" in client.get("/groups/nobodys/change/reset?to=first").plain
    assert client.get("/changes/0123").status == 404


def test_nothing_can_be_changed_without_a_session_or_with_another_ones_form(plane, client, group):
    path = f"/groups/{group.group_id}/change/rebalance"
    fields = client.get(f"/groups/{group.group_id}/change").hidden(path)
    stranger, other = PageClient(plane.address), PageClient(plane.address)
    other.log_in(USER, PASSWORD)

    assert stranger.get(f"/groups/{group.group_id}/change").location.startswith("/login?next=")
    assert stranger.post(path, fields).status == 401
    assert other.post(path, fields).status == 403
    assert client.post(path, fields, origin="https://evil.example").status == 403
    assert client.post(path, {}).status == 403
    assert client.get(path).status == 405
    assert stranger.get("/events/changes/0123").status == 401
    assert requests(plane, group.group_id) == []


OPERATES = ("reset", "rebalance", "kick", "inspect", "readmit", "pause", "resume")
ADMINISTERS = ("settings", "delete")


@pytest.fixture(scope="module")
def roles(plane: ChangingPage) -> dict[str, PageClient]:
    """A viewer, an operator of other groups, and an operator of all; logged in."""
    file = plane.access.auth_file
    assert file is not None
    add_user(file, "vic", PASSWORD, role="viewer")
    add_user(file, "otto", PASSWORD, role="administrator", groups=["other-*", "unchange?s"])
    add_user(file, "olga", PASSWORD, role="operator", groups=["none", "unchang*"])
    clients = {name: PageClient(plane.address) for name in ("vic", "otto", "olga")}
    for name, client in clients.items():
        assert client.log_in(name, PASSWORD).status == 303
    return clients


def test_every_change_belongs_to_a_role():
    routes = ChangePages(*[None] * 4).routes  # type: ignore[arg-type]
    changes = {
        route.path.rpartition("/")[2]
        for route in routes
        if isinstance(route, Route) and "POST" in (route.methods or ())
    }

    assert changes == {*OPERATES, *ADMINISTERS}


def test_a_role_and_its_groups_decide_what_a_user_may_change(plane, unchanged, roles):
    """Every form is refused too, whatever the pages show; reading is for all."""
    path = f"/groups/{unchanged.group_id}"
    lacking = {
        ("vic", "operator"): "your role is viewer; this needs the role operator",
        ("vic", "administrator"): "your role is viewer; this needs the role administrator",
        ("otto", "operator"): "you may change the groups other-*, unchange?s; unchanged is none of them",
        ("otto", "administrator"): "you may change the groups other-*, unchange?s; unchanged is none of them",
        ("olga", "administrator"): "your role is operator; this needs the role administrator",
    }
    for (name, needed), sentence in lacking.items():
        client = roles[name]
        fields = {"to": "first", "client": "c1", "settle_ms": "7", "token": "x"}
        for change in OPERATES if needed == "operator" else ADMINISTERS:
            answer = client.post(f"{path}/change/{change}", fields)
            assert (answer.status, sentence in answer.plain.lower()) == (403, True), (name, change, answer.plain)
        for change in (
            ("", "/reset?to=first", "/kick?client=c1", "/inspect?client=c1")
            if needed == "operator"
            else ("/settings?settle_ms=7", "/delete")
        ):
            answer = client.get(f"{path}/change{change}")
            assert (answer.status, sentence in answer.plain.lower()) == (403, True), (name, change, answer.plain)
    assert {name: "Change this group" in client.get(path).plain for name, client in roles.items()} == {
        "vic": False,
        "otto": False,
        "olga": True,
    }
    assert requests(plane, unchanged.group_id) == []


def test_an_operator_sees_and_sends_the_forms_of_an_operator(plane, group, roles):
    """A new role counts at once: no login is needed in between."""
    path = f"/groups/{group.group_id}/change"
    assert plane.access.auth_file is not None
    grant(plane.access.auth_file, "olga", None, [group.group_id])
    forms = roles["olga"].get(path)
    assert [name for name in (*OPERATES, *ADMINISTERS) if f'action="{path}/{name}"' in forms.text] == [
        *("reset", "rebalance", "kick", "pause"),
    ]

    assert "Done" in outcome(roles["olga"], roles["olga"].post(f"{path}/pause", forms.hidden(f"{path}/pause"))).plain
    grant(plane.access.auth_file, "olga", "viewer", None)
    assert roles["olga"].get(path).status == 403
    grant(plane.access.auth_file, "olga", "operator", ["none", "unchang*"])


def test_a_key_that_the_coordinator_does_not_know_is_explained(plane, group, tmp_path):
    keys = tmp_path / "other.toml"
    keys.write_text("".join(Path(str(plane.settings.keys)).read_text().partition("\n\n")[:2]))  # the observer's
    add_key(keys, new_key("operator"))
    assert [key.role for key in read_keys(keys).by_id.values()] == ["observer", "operator"]
    with served(msgspec.structs.replace(plane.settings, keys=str(keys)), plane.access) as address:
        client = PageClient(address)
        client.log_in(USER, PASSWORD)
        path = f"/groups/{group.group_id}/change/rebalance"
        wait_until(lambda: client.get(f"/groups/{group.group_id}").status == 200, "the group is known")
        ended = outcome(client, client.post(path, client.get(f"/groups/{group.group_id}/change").hidden(path)))

    assert "Refused: the coordinator rejected the request (signature)" in ended.plain
    assert "add the key to the coordinator's file" in ended.plain


def test_a_proxy_names_who_asked_and_where_from(plane, group):
    access = AccessOptions(allow_changes=True, auth_header="X-Forwarded-User", trusted_proxies="127.0.0.1")
    with served(plane.settings, access) as address:
        client = PageClient(address)
        path, proxied = (
            f"/groups/{group.group_id}/change",
            {"X_Forwarded_User": "tom", "X_Forwarded_For": "203.0.113.5"},
        )
        wait_until(lambda: client.get(f"/groups/{group.group_id}").status == 200, "the group is known")
        fields = client.get(path, **proxied).hidden(f"{path}/rebalance")

        assert client.post(f"{path}/rebalance", fields).status == 403
        assert client.post(f"{path}/rebalance", fields, **(proxied | {"X_Forwarded_User": "eve"})).status == 403
        answer = client.post(f"{path}/rebalance", fields, **proxied)
        wait_until(lambda: requests(plane, group.group_id), "the request is recorded")
    assert answer.status == 303
    assert [one.by for one in requests(plane, group.group_id)] == ["tom@203.0.113.5 via page"]


def test_of_users_that_a_proxy_names_the_file_has_the_roles(plane, unchanged, tmp_path):
    """Who is not in it may read; without a file, each of them may change everything."""
    users = tmp_path / "roles.toml"
    add_user(users, "tom", None, role="operator")
    access = AccessOptions(
        allow_changes=True, auth_header="X-Forwarded-User", trusted_proxies="127.0.0.1", auth_file=users
    )
    access.check("0.0.0.0", plane.settings)
    with served(plane.settings, access) as address:
        client, path = PageClient(address), f"/groups/{unchanged.group_id}"
        wait_until(lambda: client.get(path).status == 200, "the group is known")
        found = {
            name: [
                client.get(f"{path}{page}", X_Forwarded_User=name).status for page in ("", "/change", "/change/delete")
            ]
            for name in ("tom", "eve")
        }
        assert client.get("/login").status == 404

    assert found == {"tom": [200, 200, 403], "eve": [200, 403, 403]}


def test_a_coordinator_that_does_not_answer_and_brokers_that_are_gone_are_told(broker, tmp_path, group_id):
    with changing_page(broker.bootstrap, tmp_path) as plane:
        plane.coordinator.configure(group_id, settle_ms=0)
        gone = msgspec.structs.replace(plane.settings, bootstrap="127.0.0.1:9")
        registry = CollectorRegistry()
        choice, health = GroupChoice(registry, 100), Health("not yet")
        with following(plane.settings, registry, choice, health) as source, ExitStack() as stack:
            client, unreachable = (
                PageClient(
                    stack.enter_context(
                        answering(
                            WebApp(
                                source,
                                CollectorRegistry(),
                                ["127.0.0.1"],
                                gate=Gate(plane.access),
                                work=Work(found, 0.5),
                            )
                        )
                    )
                )
                for found in (plane.settings, gone)
            )
            path = f"/groups/{group_id}/change"
            wait_until(lambda: client.get(f"/groups/{group_id}").status == 200, "the group is known")
            for one in (client, unreachable):
                one.log_in(USER, PASSWORD)
            plane.coordinator.stop()

            silent = outcome(client, client.post(f"{path}/rebalance", client.get(path).hidden(f"{path}/rebalance")))
            form = unreachable.get(path).hidden(f"{path}/rebalance")
            failed = outcome(unreachable, unreachable.post(f"{path}/rebalance", form))
            plan = unreachable.get(f"{path}/reset?to=first")

    assert "No answer: the coordinator did not answer within 0.5 s; the request is recorded" in silent.plain
    assert "do not repeat it" in silent.plain
    assert "Failed: no Kafka broker answered at 127.0.0.1:9" in failed.plain
    assert plan.status == 503
    assert "nothing was changed" in plan.plain
