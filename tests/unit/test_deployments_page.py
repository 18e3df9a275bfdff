"""The page of several deployments over HTTP: its list, and pages, JSON, events and moments below the name of each."""

import json
import re
import urllib.error
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.control_log import START_MS
from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day
from tests.support.systems.deployments_site import deployments_site
from tests.support.systems.page_client import PageClient
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.keys import add_key, new_key
from wakeroll_pipeline.cli.settings_sources import load_named
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.user_file import add_user
from wakeroll_pipeline.serve.several_deployments import check_deployments
from wakeroll_pipeline.settings import InvalidSettings, Settings

PASSWORD = "correct horse battery"
OUTSIDE = {"/", "/login", "/logout"}
"""Addresses of the whole site that pages of a deployment lead to."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_tables(folder / "warehouse", a_day())
    return folder


@pytest.fixture(scope="module")
def site(home: Path) -> Iterator[str]:
    with deployments_site(home) as address:
        yield address


def get(address: str) -> tuple[int, str]:
    try:
        answer = urlopen(address, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.read().decode()


def addresses_in(text: str) -> set[str]:
    """Return the addresses of this site that a page leads to, or sends to, without those of its files."""
    found = re.findall(r'(?:href|action|data-events)="([^"]*)"', text)
    return {unescape(one) for one in found if one.startswith("/") and not one.startswith("/static/")}


# --- the list ---


def test_the_first_view_lists_the_deployments_with_their_states(site):
    status, text = get(f"{site}/")
    listed = json.loads(get(f"{site}/api/deployments")[1])["deployments"]

    assert status == 200
    assert addresses_in(text) >= {"/deployments/prod/", "/deployments/test/", "/deployments/prod/?verdict=healthy"}
    assert [(one["name"], one["groups"], one["members"]) for one in listed] == [("prod", 2, 3), ("test", 0, 0)]
    assert sum(listed[0]["verdicts"].values()) == 2
    assert 'id="d-test"' in text
    assert "the brokers cannot be read for 0 s: no Kafka broker answered at gone:9092" in text


def test_a_deployment_that_is_away_hinders_no_other_one(site):
    """A page that is not ready gets no requests in Kubernetes."""
    status, text = get(f"{site}/readyz")

    assert (status, text.splitlines()[0]) == (200, "ready")
    assert text.splitlines()[2].startswith("test: the brokers cannot be read for 0 s")
    assert get(f"{site}/healthz")[0] == 200
    assert "billing" in get(f"{site}/deployments/prod/")[1]
    assert "no Kafka broker answered at gone:9092" in get(f"{site}/deployments/test/")[1]


def test_the_list_is_streamed(site):
    with urlopen(f"{site}/events/deployments", timeout=60) as stream:
        update = json.loads(next(line for line in stream if line.startswith(b"data: "))[6:])

    assert set(update["regions"]) == {"status", "deployments"}
    assert update["state"] == "stale"


def test_the_metrics_of_a_deployment_have_its_name(site):
    families = list(text_string_to_metric_families(get(f"{site}/metrics")[1]))
    names = [one.name for one in families]
    groups = {one.labels["deployment"]: one.value for one in find(families, "wakeroll_groups").samples}

    assert len(names) == len(set(names)), "Prometheus accepts each name once"
    assert groups == {"prod": 2, "test": 0}
    members = find(families, "kafka_consumergroup_members").samples
    assert {(one.labels["deployment"], one.labels["consumergroup"]) for one in members} == {
        ("prod", "audit"),
        ("prod", "billing"),
    }
    assert all("deployment" not in one.labels for one in find(families, "wakeroll_kafka_client_errors").samples)


def find(families, name: str):
    return next(one for one in families if one.name == name)


def test_what_does_not_exist_is_not_found(site):
    assert [get(f"{site}{path}")[0] for path in ("/deployments/other/", "/groups/billing", "/nothing")] == [404] * 3
    assert get(f"{site}/deployments/prod/groups/nobody")[0] == 404
    assert get(f"{site}/api/nothing") == (404, "there is nothing at /api/nothing\n")
    assert get(f"{site}/deployments/prod/api/nothing")[1] == "there is nothing at /deployments/prod/api/nothing\n"


# --- the pages of a deployment ---


def test_every_link_of_a_deployment_leads_to_the_same_deployment(home, tmp_path):
    """A link that loses its deployment would show the groups of another one."""
    users = tmp_path / "users.toml"
    add_user(users, "mia", PASSWORD)
    with deployments_site(home, AccessOptions(auth_file=users, allow_changes=True, require_login=True)) as address:
        client = PageClient(address)
        client.log_in("mia", PASSWORD)
        found, todo = set[str](), ["/deployments/prod/"]
        while todo:
            path = todo.pop()
            answer = client.get(path)
            assert answer.status == 200, (path, answer.plain)
            new = addresses_in(answer.text)
            assert all(one.startswith("/deployments/prod/") or one in OUTSIDE for one in new), (path, new)
            assert "/" in new, "there is a way back to the list"
            known = {urlsplit(one).path for one in found}
            for one in sorted(new - OUTSIDE - found):
                place = urlsplit(one).path
                needs_more = "/change/" in place and "?" not in one  # the fields of a form
                if place not in known and "/events/" not in place and not needs_more:
                    known.add(place)
                    todo.append(one)
            found |= new
    visited = {urlsplit(one).path.removeprefix("/deployments/prod") for one in found}

    assert visited >= {"/", "/topics", "/happened", "/groups/billing", "/groups/billing/change", "/events/groups"}
    assert visited >= {"/groups/billing/why", "/groups/billing/what-if", "/groups/billing/change/reset"}


def test_the_events_of_a_deployment_have_its_links(site):
    with urlopen(f"{site}/deployments/prod/events/groups", timeout=60) as stream:
        update = json.loads(next(line for line in stream if line.startswith(b"data: "))[6:])

    assert addresses_in(update["regions"]["groups"]) >= {"/deployments/prod/groups/billing"}
    assert all(one.startswith("/deployments/prod/") for one in addresses_in("".join(update["regions"].values())))


def test_an_earlier_moment_is_that_of_the_deployment(site):
    at = str(EpochMs(START_MS + 3_000))
    group = json.loads(get(f"{site}/deployments/prod/api/groups/billing?at={at}")[1])
    page = get(f"{site}/deployments/prod/groups/billing?at={at}")[1]

    assert [one["client_id"] for one in group["members"]] == ["c1"]
    assert '<form class="timebar" method="get" action="/deployments/prod/groups/billing"' in page
    assert 'data-base="/deployments/prod"' in page, "the script asks for the extent of this deployment"
    assert all(one.startswith("/deployments/prod/") for one in addresses_in(page) - OUTSIDE)
    assert json.loads(get(f"{site}/deployments/prod/api/extent")[1])["first_ms"] == START_MS


# --- logins and roles ---


def test_one_login_is_for_all_deployments_and_leads_back(home, tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, "mia", PASSWORD)
    with deployments_site(home, AccessOptions(auth_file=users, require_login=True)) as address:
        client = PageClient(address)
        refused = [client.get(path).status for path in ("/", "/deployments/prod/", "/deployments/prod/api/groups")]
        wanted = client.get("/deployments/prod/groups/billing?q=a")
        answer = client.post(
            "/login", {"name": "mia", "password": PASSWORD, "next": "/deployments/prod/groups/billing"}
        )
        pages = [client.get(path) for path in ("/", "/deployments/prod/", "/deployments/test/")]
        left = client.post("/logout", pages[1].hidden("/logout"))

        assert refused == [303, 303, 401]
        assert wanted.location == "/login?next=%2Fdeployments%2Fprod%2Fgroups%2Fbilling%3Fq%3Da"
        assert (answer.status, answer.location) == (303, "/deployments/prod/groups/billing")
        assert all("mia" in page.plain for page in pages)
        assert (left.location, client.get("/deployments/test/").status) == ("/", 303)


def test_a_role_may_be_for_one_deployment(home, tmp_path):
    """Else somebody who may try things out in `test` could reset offsets in `prod`."""
    users = tmp_path / "users.toml"
    add_user(users, "olga", PASSWORD, role="operator", groups=["pro?/aud*", "test/*", "prod-*"])
    with deployments_site(home, AccessOptions(auth_file=users, allow_changes=True)) as address:
        client = PageClient(address)
        client.log_in("olga", PASSWORD)
        forms = {name: client.get(f"/deployments/prod/groups/{name}/change") for name in ("audit", "billing")}
        links = {name: client.get(f"/deployments/prod/groups/{name}").plain for name in ("audit", "billing")}

        assert {name: answer.status for name, answer in forms.items()} == {"audit": 200, "billing": 403}
        assert "billing of the deployment prod is none of them" in forms["billing"].plain
        assert {name: "Change this group" in text for name, text in links.items()} == {"audit": True, "billing": False}


# --- what cannot work ---


def test_the_file_of_a_deployment_overrides_the_environment(tmp_path):
    """The environment is common to all deployments; what one is called must not be what another one is called."""
    file = tmp_path / "prod.toml"
    file.write_text('bootstrap = "prod:9092"\nprefix = "p"\n')
    environment = {"WAKEROLL_BOOTSTRAP": "other:9092", "WAKEROLL_PREFIX": "x", "WAKEROLL_HOME": "h", "PATH": ""}
    settings = load_named(environment, file)

    assert (settings.bootstrap, settings.prefix, settings.home) == ("prod:9092", "p", "h")
    file.write_text('prefix = "p"\n')
    with pytest.raises(InvalidSettings, match="names no broker; it must have a line like bootstrap ="):
        load_named(environment, file)


def test_deployments_with_the_tables_of_one_are_refused(home, tmp_path):
    both = {name: Settings(bootstrap="127.0.0.1:9", prefix=name, home=str(home)) for name in ("a", "b")}
    with pytest.raises(InvalidUsage, match="the deployments 'a' and 'b' have the same home"):
        check_deployments(both, "127.0.0.1", AccessOptions())

    without = {name: Settings(bootstrap="127.0.0.1:9", prefix=name, home=str(tmp_path)) for name in ("a", "b")}
    check_deployments(without, "127.0.0.1", AccessOptions())


def test_every_deployment_needs_what_changes_need(tmp_path):
    keys, users = tmp_path / "keys.toml", tmp_path / "users.toml"
    add_key(keys, new_key("operator"))
    add_user(users, "mia", PASSWORD)
    named = {
        "a": Settings(bootstrap="127.0.0.1:9", keys=str(keys), home=str(tmp_path / "a")),
        "b": Settings(bootstrap="127.0.0.1:9", home=str(tmp_path / "b")),
    }
    with pytest.raises(InvalidUsage, match="the deployment 'b': --allow-changes needs the operator's key"):
        check_deployments(named, "127.0.0.1", AccessOptions(allow_changes=True, auth_file=users))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bootstrap": "nowhere"}, "bootstrap is 'nowhere'; it must be host:port"),
        ({"keys": "nowhere.toml"}, "nowhere.toml"),
        ({"kafka_config": "nowhere.properties"}, "cannot read the Kafka settings in nowhere.properties"),
    ],
)
def test_settings_that_cannot_work_are_named_with_their_deployment(settings, sentence):
    with pytest.raises(InvalidUsage, match=f"the deployment 'prod': .*{re.escape(sentence)}"):
        check_deployments({"prod": Settings(**{"bootstrap": "127.0.0.1:9", **settings})}, "127.0.0.1", AccessOptions())
