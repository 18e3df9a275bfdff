"""`wakeroll serve --notify` beside a real coordinator: an operator pauses a group, and a webhook hears of it."""

import json
from pathlib import Path

import pytest

from tests.support.closed_port import closed_port
from tests.support.systems.changing_page import changing_page
from tests.support.systems.page_client import PageClient
from tests.support.systems.web_site import served
from tests.support.systems.webhook_receiver import receiving
from tests.support.waiting import wait_until
from wakeroll.admin import Admin

pytestmark = pytest.mark.e2e


def test_a_webhook_hears_of_a_verdict_that_begins_and_ends(broker, tmp_path, group_id):
    with changing_page(broker.bootstrap, tmp_path) as plane, receiving() as receiver:
        rules = tmp_path / "notify.toml"
        rules.write_text(
            f'holds = "0s"\n[[webhooks]]\nname = "ops"\nurl = "{receiver.url}"\nverdicts = ["paused"]\nplane = false\n'
        )
        plane.coordinator.configure(group_id, settle_ms=0)
        topics = plane.coordinator.connection.topics
        with (
            served(plane.settings, notify=rules) as address,
            Admin(broker.bootstrap, prefix=topics.prefix, keys=plane.settings.keys) as admin,
        ):
            admin.pause(group_id, reason="restore", by="mia")
            wait_until(lambda: receiver.told() == [f"began {group_id}"], "the pause is told")
            admin.resume(group_id, by="mia")
            wait_until(lambda: receiver.told()[1:] == [f"ended {group_id}"], "the end is told")
            metrics = PageClient(address).get("/metrics").text
    told = [one for _, body in receiver.received for one in json.loads(body)["notifications"]]

    assert told[0]["reason"].startswith("paused by mia since ")
    assert told[0]["reason"].endswith(": restore")
    assert told[1]["reason"].startswith("now empty: ")
    assert 'wakeroll_notifications_total{outcome="delivered",webhook="ops"} 2.0' in metrics
    assert json.loads((Path(str(plane.settings.home)) / "notified.json").read_bytes())[0]["is_told"] is False


def test_rules_that_cannot_be_used_end_the_start_before_it_looks_for_a_broker(wakeroll, tmp_path):
    (tmp_path / "notify.toml").write_text("[[webhooks]]\nname = 'ops'\n")
    with closed_port() as port:
        for words, sentence in (
            (
                ("--notify", str(tmp_path / "notify.toml")),
                "notify.toml are not valid: Object missing required field `url`",
            ),
            (("--notify", str(tmp_path / "none.toml")), "none.toml: No such file or directory"),
        ):
            code, _, complaint = wakeroll("serve", *words, "--bootstrap", f"127.0.0.1:{port}", "--port", "0")
            assert (code, sentence in complaint) == (2, True), complaint

    code, _, complaint = wakeroll("serve", "--notify", str(tmp_path / "notify.toml"), "--home", str(tmp_path))
    assert (code, "--notify needs brokers: use --bootstrap" in complaint) == (2, True)
