"""Notifications: which verdicts are told when they begin and end, and how that reaches a real HTTP server."""

import base64
import hashlib
import hmac
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from tests.support.systems.webhook_receiver import Receiver, receiving
from tests.support.waiting import wait_until
from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.answer_schemas import answer_schemas
from wakeroll_pipeline.live.verdicts import KINDS, Finding, Kind
from wakeroll_pipeline.live.view_structs import GroupSummary, GroupsView, Health, Notice
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import HOST, free_ports
from wakeroll_pipeline.notify import notifying, webhooks
from wakeroll_pipeline.notify.causes import Causes, Memory, Notification
from wakeroll_pipeline.notify.notification_forms import Sender, body_of
from wakeroll_pipeline.notify.notify_file import URGENT, Rules, Silence, Webhook, read_rules
from wakeroll_pipeline.notify.notifying import Notifying
from wakeroll_pipeline.notify.webhooks import MOST_AT_ONCE, WebhookThread, signed_headers

ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
HOOK = Webhook(name="ops", url="https://ops.example/hook")
RULES = Rules(webhooks=(HOOK,))
S = 1_000


def group(group_id: str, verdict: Kind = "healthy", reason: str = "") -> GroupSummary:
    return GroupSummary(
        group_id=group_id,
        verdict=verdict,
        reason=reason or f"it is {verdict}",
        findings=[Finding(verdict, reason)],
        mode="clustering",
        strategy="AVG",
        epoch=1,
        topics=["orders"],
        members=2,
        queues=4,
        unowned=0,
        moving=0,
        lag_messages=7,
        lag_queues=1,
        behind_since_ms=None,
    )


def view(*groups: GroupSummary, state: Any = "live", notices: tuple[Notice, ...] = ()) -> GroupsView:
    return GroupsView(health=Health(source="live", state=state, as_of_ms=0, notices=list(notices)), groups=list(groups))


class Looks:
    """Looks at verdicts second by second."""

    def __init__(self, rules: Rules = RULES, causes: Causes | None = None, now_ms: int = 0) -> None:
        self.rules = rules
        self.causes = causes or Causes()
        self.now_ms = now_ms

    def at(self, seconds: float, *groups: GroupSummary, **given: Any) -> list[str]:
        """Return what is told at a second, as event, group and verdict."""
        found = self.causes.look(view(*groups, **given), self.rules, self.now_ms + round(seconds * S))
        return [f"{one.event} {one.group_id or 'plane'} {one.verdict}" for one in found]


# --- which causes are told ---


def test_a_verdict_is_told_when_it_has_lasted_and_when_its_end_has():
    looks = Looks()

    assert looks.at(0, group("billing", "stalled"), group("audit")) == []
    assert looks.at(29, group("billing", "stalled"), group("audit")) == []
    assert looks.at(31, group("billing", "stalled"), group("audit")) == ["began billing stalled"]
    assert looks.at(600, group("billing", "stalled")) == []
    assert looks.at(605, group("billing")) == []
    assert looks.at(640, group("billing")) == ["ended billing stalled"]
    assert looks.at(700, group("billing")) == []


def test_what_it_says_is_the_reason_then_and_the_verdict_now():
    causes = Causes()
    causes.look(view(group("billing", "stalled", "orders-3 stands")), RULES, 0)
    [began] = causes.look(view(group("billing", "stalled", "orders-3 and orders-4 stand")), RULES, 40 * S)
    causes.look(view(group("billing", "empty", "no members")), RULES, 50 * S)
    [ended] = causes.look(view(group("billing", "empty", "no members")), RULES, 90 * S)

    assert began == Notification(
        event="began",
        group_id="billing",
        verdict="stalled",
        reason="orders-3 and orders-4 stand",
        since_ms=0,
        at_ms=40 * S,
        members=2,
        lag_messages=7,
    )
    assert (ended.reason, ended.since_ms, ended.at_ms) == ("now empty: no members", 0, 90 * S)


def test_a_verdict_that_flaps_is_told_at_most_once_in_the_interval():
    looks, told = Looks(msgspec.structs.replace(RULES, holds_ms=0, interval_ms=600 * S)), []
    for second in range(0, 1_800, 10):
        told += [(second, one) for one in looks.at(second, group("billing", "stalled" if second % 20 else "healthy"))]

    begins = [second for second, one in told if one == "began billing stalled"]
    assert begins == [10, 610, 1_210]
    assert len([one for _, one in told if one == "ended billing stalled"]) == 3


def test_a_verdict_that_never_lasts_is_never_told():
    looks = Looks()

    for second in range(0, 3_600, 10):
        assert looks.at(second, group("billing", "stalled" if second % 40 else "healthy")) == []


def test_a_new_cause_of_the_same_group_is_told_though_the_interval_is_not_over():
    looks = Looks()
    looks.at(0, group("billing", "stalled"))
    assert looks.at(40, group("billing", "stalled")) == ["began billing stalled"]
    assert looks.at(50, group("billing", "abandoned")) == []
    assert looks.at(90, group("billing", "abandoned")) == ["ended billing stalled", "began billing abandoned"]


@pytest.mark.parametrize("verdict", sorted(set(KINDS) - set(URGENT)))
def test_what_needs_nobody_is_not_told_unless_a_webhook_wants_it(verdict):
    looks = Looks()
    wanting = Looks(Rules(webhooks=(msgspec.structs.replace(HOOK, verdicts=(verdict,)),), holds_ms=0))

    assert looks.at(0, group("billing", verdict)) + looks.at(100, group("billing", verdict)) == []
    assert wanting.at(0, group("billing", verdict)) == [f"began billing {verdict}"]


def test_a_silenced_group_is_told_when_the_silence_ends_and_it_lasts_still():
    until = datetime.fromtimestamp(600, UTC)
    looks = Looks(msgspec.structs.replace(RULES, silences=(Silence(groups=("bill*",), until=until),)))
    for second in range(0, 600, 30):
        told = looks.at(second, group("billing", "stalled"), group("audit", "stalled"))
        assert told == (["began audit stalled"] if second == 30 else [])

    assert looks.at(601, group("billing", "stalled"), group("audit", "stalled")) == ["began billing stalled"]


def test_what_is_silenced_while_it_lasts_is_not_told_again():
    """Alertmanager takes it for resolved then, as somebody wants who silences it."""
    looks = Looks()
    looks.at(0, group("billing", "stalled"), group("audit", "stalled"))
    looks.at(40, group("billing", "stalled"), group("audit", "stalled"))
    silenced = msgspec.structs.replace(RULES, silences=(Silence(groups=("billing",)),))

    told = [looks.causes.lasting({}, rules, 100 * S) for rules in (RULES, silenced)]
    assert [[one.group_id for one in lasting] for lasting in told] == [["billing", "audit"], ["audit"]]


def test_a_group_that_is_deleted_has_ended():
    looks = Looks()
    looks.at(0, group("billing", "abandoned"))
    looks.at(40, group("billing", "abandoned"))
    looks.at(50)

    [ended] = looks.causes.look(view(), RULES, 90 * S)
    assert (ended.event, ended.reason, ended.members) == ("ended", "the group is gone", None)


def test_while_the_view_is_not_current_no_verdict_begins_or_ends_and_the_plane_is_told():
    """It shows the verdicts of an earlier moment; the control plane itself is wrong."""
    still = Notice(kind="no-ticks", level="error", text="no tick for 40 s")
    looks = Looks()
    looks.at(0, group("billing", "stalled"))
    assert looks.at(40, group("billing", "stalled")) == ["began billing stalled"]

    assert looks.at(50, group("billing"), group("audit", "stalled"), state="stale", notices=(still,)) == []
    assert looks.at(90, group("billing"), group("audit", "stalled"), state="stale", notices=(still,)) == [
        "began plane no-ticks"
    ]
    assert looks.at(95, group("billing", "stalled"), group("audit"), state="starting") == []
    assert looks.at(100, group("billing", "stalled"), group("audit")) == []
    assert looks.at(140, group("billing", "stalled"), group("audit")) == ["ended plane no-ticks"]


def test_a_restart_tells_nothing_again():
    first = Looks()
    first.at(0, group("billing", "stalled"), group("audit", "stalled"))
    first.at(40, group("billing", "stalled"), group("audit", "stalled"))
    kept = msgspec.json.decode(msgspec.json.encode(first.causes.memory), type=list[Memory])
    second = Looks(causes=Causes(kept))

    assert second.at(100, group("billing", "stalled"), group("audit")) == []
    assert second.at(140, group("billing", "stalled"), group("audit")) == ["ended audit stalled"]


def test_what_is_known_does_not_grow_with_groups_that_came_and_went():
    looks = Looks()
    for number in range(200):
        looks.at(number * 100, group(f"g{number}", "stalled"))
        looks.at(number * 100 + 50, group(f"g{number}", "stalled"))

    assert len(looks.causes.memory) < 15


# --- the bodies ---

TOLD = [
    Notification(event="began", group_id="a <b> & c", verdict="stalled", reason="<x> & y", since_ms=S, at_ms=2 * S),
    Notification(event="ended", group_id="", verdict="no-ticks", reason="it is over", since_ms=S, at_ms=2 * S),
]
SENDER = Sender("wakeroll", "https://page.example")


def test_our_own_form_follows_its_schema():
    document = json.loads(body_of("json", SENDER, TOLD))

    jsonschema.validate(document, answer_schemas()["notification.json"])
    assert document["deployment"] == "wakeroll"
    assert [one["link"] for one in document["notifications"]] == [
        "https://page.example/groups/a%20%3Cb%3E%20%26%20c",
        "https://page.example/",
    ]
    assert json.loads(body_of("json", Sender("wakeroll"), TOLD))["notifications"][0]["link"] == ""


def test_slack_gets_lines_in_its_markup_and_not_too_many():
    """A name could otherwise be a link or a mention."""
    [first, second] = json.loads(body_of("slack", SENDER, TOLD))["text"].splitlines()
    many = json.loads(body_of("slack", SENDER, TOLD[:1] * 100))["text"].splitlines()

    assert first == (
        "⚠️ <https://page.example/groups/a%20%3Cb%3E%20%26%20c|a &lt;b&gt; &amp; c>: stalled; &lt;x&gt; &amp; y"
    )
    assert second == "✅ <https://page.example/|wakeroll (wakeroll)>: no longer no-ticks; it is over"
    assert (len(many), many[-1]) == (21, "and 80 more")


def test_alertmanager_gets_alerts_with_a_start_and_those_that_ended_with_an_end():
    first, second = json.loads(body_of("alertmanager", SENDER, TOLD))

    assert first["labels"] == {
        "alertname": "WakerollGroup",
        "deployment": "wakeroll",
        "verdict": "stalled",
        "group": "a <b> & c",
    }
    assert (first["startsAt"], "endsAt" in first) == ("1970-01-01T00:00:01.000Z", False)
    assert (second["labels"]["alertname"], second["endsAt"]) == ("WakerollPlane", "1970-01-01T00:00:02.000Z")


# --- the way to a webhook ---


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@contextmanager
def sending(webhook: Webhook, secret: bytes | None = None) -> Iterator[tuple[WebhookThread, CollectorRegistry]]:
    registry = CollectorRegistry()
    counter = Counter("wakeroll_notifications", "", ["webhook", "outcome"], registry=registry)
    thread = WebhookThread(webhook, secret, SENDER, counter)
    thread.start()
    yield thread, registry
    thread.stop()
    thread.join(30)
    assert not thread.is_alive()


def notes(count: int) -> list[Notification]:
    now = notifying.now_ms()
    return [
        Notification(event="began", group_id=f"g{number}", verdict="stalled", reason="", since_ms=now, at_ms=now)
        for number in range(count)
    ]


def counted(registry: CollectorRegistry, outcome: str) -> float | None:
    return registry.get_sample_value("wakeroll_notifications_total", {"webhook": "ops", "outcome": outcome})


def test_a_thousand_causes_at_once_are_a_few_requests_in_order(receiver):
    with sending(msgspec.structs.replace(HOOK, url=receiver.url)) as (thread, registry):
        thread.send(notes(950))
        wait_until(lambda: len(receiver.told()) == 950, "all are received")
        wait_until(lambda: counted(registry, "delivered") == 950, "all are counted")

    assert receiver.told() == [f"began g{number}" for number in range(950)]
    assert len(receiver.received) <= 950 // MOST_AT_ONCE + 2


def test_each_request_is_signed_as_standard_webhooks_describes(receiver):
    secret = b"a secret of enough bytes"
    with sending(msgspec.structs.replace(HOOK, url=receiver.url), secret) as (thread, _):
        thread.send(notes(1))
        wait_until(lambda: receiver.received, "it is received")
    [(headers, body)] = receiver.received

    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    # The example of the specification of Standard Webhooks.
    assert (
        signed_headers(
            base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1614265330,
            b'{"test": 2432232314}',
        )["webhook-signature"]
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_what_a_webhook_refuses_comes_again_and_the_log_has_two_lines(receiver, monkeypatch, caplog):
    """The log never has the address, which may contain a secret."""
    monkeypatch.setattr(webhooks, "_FIRST_PAUSE_S", 0.01)
    caplog.set_level("INFO")
    receiver.answers = [500, 302, 429]
    with sending(msgspec.structs.replace(HOOK, url=receiver.url)) as (thread, registry):
        thread.send(notes(2))
        wait_until(lambda: counted(registry, "delivered") == 2, "both are delivered")

    assert receiver.told() == ["began g0", "began g1"]
    assert [one.getMessage() for one in caplog.records] == [
        "the webhook ops does not take notifications: it answers 500 Internal Server Error; retrying",
        "the webhook ops takes notifications again",
    ]


def test_a_redirect_is_not_followed_and_named(receiver, caplog):
    receiver.answers = [302] * 100
    with sending(msgspec.structs.replace(HOOK, url=receiver.url)) as (thread, _):
        thread.send(notes(1))
        wait_until(lambda: caplog.records, "the refusal is logged")

    assert "302 Found, which leads to elsewhere.example; name that address" in caplog.text
    assert "secret-path" not in caplog.text


def test_a_webhook_that_hangs_gets_a_request_again_with_its_id_and_what_is_too_much_is_dropped(
    receiver, monkeypatch, caplog
):
    """The oldest ones; the request that is under way is repeated as it was."""
    monkeypatch.setattr(webhooks, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.5)
    receiver.hangs.clear()
    with sending(msgspec.structs.replace(HOOK, url=receiver.url), b"a secret of enough bytes") as (thread, registry):
        thread.send(notes(2))
        wait_until(lambda: "timed out" in caplog.text, "the first request was given up")
        thread.send(notes(webhooks.MOST_WAITING + 7))
        assert counted(registry, "dropped") == 7
        receiver.hangs.set()
        wait_until(lambda: counted(registry, "delivered") == webhooks.MOST_WAITING + 2, "the rest is delivered")

    ids = {headers["webhook-id"] for headers, body in receiver.received if len(json.loads(body)["notifications"]) == 2}
    assert len(ids) == 1
    assert receiver.told()[-1] == f"began g{webhooks.MOST_WAITING + 6}"


def test_what_is_no_news_any_more_is_dropped(receiver, monkeypatch):
    """Both what waits and what is repeated; the webhook is away."""
    monkeypatch.setattr(webhooks, "_FIRST_PAUSE_S", 0.01)
    receiver.answers = [503] * 1_000
    with sending(msgspec.structs.replace(HOOK, url=receiver.url)) as (thread, registry):
        [old] = notes(1)
        thread.send([msgspec.structs.replace(old, at_ms=old.at_ms - webhooks.LONGEST_MS - 1)])
        wait_until(lambda: counted(registry, "dropped") == 1, "the old one is dropped")
        thread.send([msgspec.structs.replace(old, at_ms=notifying.now_ms() - webhooks.LONGEST_MS + 500)])
        wait_until(lambda: counted(registry, "dropped") == 2, "one that became old is dropped")
        receiver.answers = []
        thread.send(notes(1))
        wait_until(lambda: counted(registry, "delivered") == 1, "a new one is delivered")

    assert receiver.told() == ["began g0"]


# --- the rules ---


def written(folder: Path, text: str) -> Path:
    path = folder / "notify.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_rules_have_defaults_that_need_only_a_name_and_an_address(tmp_path):
    rules = read_rules(written(tmp_path, '[[webhooks]]\nname = "ops"\nurl = "https://ops.example/hook"\n'))

    assert rules == RULES


def test_every_setting_is_read(tmp_path):
    secret = tmp_path / "ops.secret"
    secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    secret.chmod(0o600)
    rules = read_rules(
        written(
            tmp_path,
            """
            holds = "1m"
            interval = "2h"
            [[webhooks]]
            name = "ops"
            url = "http://ops.example/hook"
            format = "slack"
            groups = ["orders-*", "billing"]
            verdicts = ["stalled", "paused"]
            plane = false
            secret_file = "ops.secret"
            [[silences]]
            groups = ["orders-test"]
            verdicts = ["stalled"]
            until = 2026-12-24T12:00:00Z
            reason = "load test"
            """,
        )
    )

    assert (rules.holds_ms, rules.interval_ms) == (60 * S, 7_200 * S)
    assert rules.secrets == {"ops": base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")}
    hook = rules.webhooks[0]
    asked = [("orders-1", "stalled"), ("orders-1", "behind"), ("audit", "stalled"), ("", "no-ticks")]
    assert [hook.wants(*one) for one in asked] == [True, False, False, False]
    assert rules.is_silent("orders-test", "stalled", 0)
    assert not rules.is_silent("orders-test", "stalled", 1_800_000_000_000)


BEGIN = '[[webhooks]]\nname = "ops"\nurl = "https://ops.example/hook"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Object missing required field `webhooks`"),
        ("webhooks = []", "Expected `array` of length >= 1"),
        ("[[webhooks", "not valid"),
        (
            '[[webhooks]]\nname = "ops"\nurl = "ops.example"',
            "the url of the webhook 'ops' .* must be like https://host:port/path",
        ),
        ('[[webhooks]]\nname = "ops"\nurl = "file:///etc/passwd"', "must be like https://host:port/path"),
        ('[[webhooks]]\nname = "ops"\nurl = "https://a:99999/"', "must be like https://host:port/path"),
        ('[[webhooks]]\nname = "ops"\nurl = "https://a/é"', "must be like https://host:port/path"),
        ('[[webhooks]]\nname = "a b"\nurl = "https://a"', "name"),
        (BEGIN + BEGIN, "two webhooks have the name 'ops'"),
        (BEGIN + 'format = "teams"', "Invalid enum value 'teams'"),
        (BEGIN + 'verdicts = ["broken"]', "Invalid enum value 'broken'"),
        (BEGIN + 'verdict = ["stalled"]', "unknown field `verdict`"),
        (BEGIN + "groups = []", "length >= 1"),
        (BEGIN + 'secret_file = "nothing"', "cannot read the secret .*nothing: No such file"),
        ('holds = "soon"\n' + BEGIN, "holds in .* is 'soon'; it must be a duration like 30s"),
        ('interval = "9w"\n' + BEGIN, "interval in .* is '9w'"),
        (BEGIN + '[[silences]]\ngroups = ["a"]\nuntil = 2026-12-24T12:00:00', "timezone"),
    ],
)
def test_rules_that_are_not_valid_are_refused_with_the_name_of_what_is_wrong(tmp_path, text, sentence):
    with pytest.raises(InvalidUsage, match=sentence):
        read_rules(written(tmp_path, text))


def test_a_file_that_is_no_text_is_refused_and_a_silence_of_long_ago_is_over(tmp_path):
    (tmp_path / "notify.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidUsage, match="are not valid: 'utf-8' codec"):
        read_rules(tmp_path / "notify.toml")

    old = BEGIN + '[[silences]]\ngroups = ["*"]\nuntil = 0001-01-02T00:00:00Z'
    assert not read_rules(written(tmp_path, old)).is_silent("billing", "stalled", 0)


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("short", 0o600, "has 5 bytes; it must have at least 16"),
        ("whsec_!", 0o600, "behind whsec_, it must be base64"),
        ("a secret of enough bytes", 0o644, "chmod 600"),
    ],
)
def test_a_secret_that_protects_nothing_is_refused(tmp_path, text, mode, sentence):
    (tmp_path / "s").write_text(text)
    (tmp_path / "s").chmod(mode)
    with pytest.raises(InvalidUsage, match=sentence):
        read_rules(written(tmp_path, BEGIN + 'secret_file = "s"'))


# --- all of it ---


@contextmanager
def notified(folder: Path, rules: Path, groups: list[GroupSummary]) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    thread = Notifying(rules, folder / "notified.json", SENDER, lambda: view(*groups), registry)
    thread.start()
    yield registry
    thread.stop()
    assert not thread.is_alive()


def test_rules_are_read_again_when_they_change_and_a_restart_tells_nothing_again(
    receiver, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(notifying, "LOOK_S", 0.02)
    caplog.set_level("INFO")
    text = f'holds = "0s"\n[[webhooks]]\nname = "ops"\nurl = "{receiver.url}"\n'
    rules, groups = written(tmp_path, text + 'groups = ["billing"]\n'), [group("billing", "stalled")]
    with notified(tmp_path, rules, groups):
        wait_until(lambda: receiver.told() == ["began billing"], "the first one is told")
        rules.write_text("nonsense")
        wait_until(lambda: "the last valid rules stay in effect" in caplog.text, "the mistake is logged")
        groups.append(group("audit", "stalled"))
        rules.write_text(text)
        wait_until(lambda: receiver.told() == ["began billing", "began audit"], "the new rules are in effect")
    with notified(tmp_path, rules, groups):
        groups[:] = [group("billing", "stalled"), group("audit")]
        wait_until(lambda: receiver.told()[2:] == ["ended audit"], "the restart knows what was told")


def test_a_home_that_cannot_be_written_and_a_view_that_fails_end_nothing(receiver, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(notifying, "LOOK_S", 0.02)
    rules = written(tmp_path, f'holds = "0s"\n[[webhooks]]\nname = "ops"\nurl = "{receiver.url}"\n')
    answers: list[Any] = [ValueError("not now"), view(group("billing", "stalled"))]

    def groups() -> GroupsView:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    (tmp_path / "home").write_text("no folder")
    thread = Notifying(rules, tmp_path / "home" / "notified.json", SENDER, groups, CollectorRegistry())
    thread.start()
    wait_until(lambda: receiver.told() == ["began billing"], "it is told all the same")
    wait_until(lambda: "a restart will tell causes again" in caplog.text, "the file is named")
    thread.stop()

    assert "cannot look at the verdicts: ValueError('not now')" in caplog.text


def test_a_home_that_does_not_exist_yet_is_created(receiver, tmp_path, monkeypatch):
    """Else each restart of a new deployment would tell everything again."""
    monkeypatch.setattr(notifying, "LOOK_S", 0.02)
    rules = written(tmp_path, f'holds = "0s"\n[[webhooks]]\nname = "ops"\nurl = "{receiver.url}"\n')
    with notified(tmp_path / "home" / "new", rules, [group("billing", "stalled")]):
        wait_until((tmp_path / "home" / "new" / "notified.json").exists, "it is remembered")


def test_alertmanager_hears_again_of_what_lasts(receiver, tmp_path, monkeypatch):
    """It takes an alert for resolved when it hears nothing for five minutes; a chat does not want that."""
    monkeypatch.setattr(notifying, "LOOK_S", 0.02)
    monkeypatch.setattr(notifying, "LASTS_S", 0.1)
    hook = f'[[webhooks]]\nurl = "{receiver.url}"\n'
    rules = written(tmp_path, f'holds = "0s"\n{hook}name = "chat"\n{hook}name = "am"\nformat = "alertmanager"\n')
    with notified(tmp_path, rules, [group("billing", "stalled")]):
        wait_until(lambda: len(receiver.received) >= 5, "it is told again and again")

    bodies = [json.loads(body) for _, body in receiver.received]
    assert len([one for one in bodies if isinstance(one, dict)]) == 1
    starts = {alert["startsAt"] for one in bodies if isinstance(one, list) for alert in one}
    assert len(starts) == 1


@contextmanager
def alertmanager(folder: Path, receiver: Receiver) -> Iterator[str]:
    """A real Alertmanager, which sends what it receives on; its address."""
    assert ALERTMANAGER
    config = {
        "route": {
            "receiver": "on-call",
            "group_by": ["alertname", "group"],
            "group_wait": "0s",
            "group_interval": "1s",
        },
        "receivers": [{"name": "on-call", "webhook_configs": [{"url": receiver.url}]}],
    }
    (folder / "alertmanager.yml").write_text(json.dumps(config))  # JSON is YAML
    [port] = free_ports(1)
    command = [
        ALERTMANAGER,
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alerts'}",
        f"--web.listen-address={HOST}:{port}",
        "--cluster.listen-address=",
    ]
    with Child("alertmanager", command, log=folder / "alertmanager.log"):
        url = f"http://{HOST}:{port}"
        wait_until(lambda: is_ready(f"{url}/-/ready"), "Alertmanager answers")
        yield url


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status == 200
    except urllib.error.URLError:
        return False


def alerts_of(receiver: Receiver) -> list[dict[str, Any]]:
    return [alert for _, body in tuple(receiver.received) for alert in json.loads(body)["alerts"]]


@pytest.mark.skipif(not ALERTMANAGER, reason="Alertmanager (Debian package prometheus-alertmanager) is not installed")
def test_a_real_alertmanager_takes_what_begins_and_resolves_what_ends(receiver, tmp_path, monkeypatch):
    monkeypatch.setattr(notifying, "LOOK_S", 0.02)
    groups = [group("billing", "stalled", "orders-3 stands"), group("audit")]
    with alertmanager(tmp_path, receiver) as url:
        hook = f'[[webhooks]]\nname = "am"\nformat = "alertmanager"\nurl = "{url}/api/v2/alerts"\n'
        with notified(tmp_path, written(tmp_path, f'holds = "0s"\n{hook}'), groups):
            wait_until(lambda: alerts_of(receiver), "somebody is called")
            groups[0] = group("billing")
            wait_until(lambda: alerts_of(receiver)[-1]["status"] == "resolved", "the call ends")
    began, ended = alerts_of(receiver)[0], alerts_of(receiver)[-1]
    labels = {"alertname": "WakerollGroup", "deployment": SENDER.deployment, "group": "billing", "verdict": "stalled"}
    assert (began["status"], began["labels"], began["annotations"]["description"]) == (
        "firing",
        labels,
        "orders-3 stands",
    )
    assert (ended["labels"], ended["startsAt"]) == (labels, began["startsAt"])
