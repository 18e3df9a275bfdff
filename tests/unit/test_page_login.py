"""Logins of the page over HTTP: sessions, forged cookies, foreign forms, proxies, and the wall around reading."""

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.support.ledgers import PARTITIONS
from tests.support.systems.page_client import PageClient
from tests.support.systems.web_site import answering
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll.keys import add_key, new_key
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.form_tokens import FORM_S, FormTokens
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.login_limits import MOST_KEYS, PER_ADDRESS, PER_PAIR, WINDOW_S, LoginLimits
from wakeroll_pipeline.serve.access.login_pages import local_path
from wakeroll_pipeline.serve.access.refusal import Refused
from wakeroll_pipeline.serve.access.session_cookie import SESSION_S, Session, Sessions
from wakeroll_pipeline.serve.access.user_file import InvalidUsers, UserFile, add_user, read_users, remove_user
from wakeroll_pipeline.serve.web_app import WebApp
from wakeroll_pipeline.serve.web_server import hosts_of
from wakeroll_pipeline.settings import Settings

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.toml"
    add_user(path, "mia", PASSWORD)
    return path


@contextmanager
def page(**options: object) -> Iterator[PageClient]:
    """Serve an empty live page with these options; provide a client."""
    access = AccessOptions(**options)
    source = ViewSource(LiveModel(Topics(), PARTITIONS))
    hosts = hosts_of("127.0.0.1", access.public_host)
    with answering(WebApp(source, CollectorRegistry(), hosts, gate=Gate(access))) as address:
        yield PageClient(address)


@pytest.fixture(scope="module")
def walled(users: Path) -> Iterator[PageClient]:
    """A page that only known users may read."""
    with page(auth_file=users, require_login=True) as client:
        yield client


@pytest.fixture
def client(walled: PageClient) -> PageClient:
    return PageClient(walled.origin)


# --- login and logout ---


def test_a_login_leads_to_the_page_that_was_wanted(client):
    refused = client.get("/groups/billing?q=a%20b")
    answer = client.post("/login", {"name": "mia", "password": PASSWORD, "next": "/groups/billing?q=a%20b"})

    assert (refused.status, refused.location) == (303, "/login?next=%2Fgroups%2Fbilling%3Fq%3Da%2520b")
    assert (answer.status, answer.location) == (303, "/groups/billing?q=a%20b")
    assert client.get("/").status == 200
    assert "mia" in client.get("/").plain


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(client):
    attributes = client.log_in("mia", PASSWORD).headers["set-cookie"].split("; ")

    assert {"HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SESSION_S}"} <= set(attributes)
    assert "Secure" not in attributes  # this machine only, without https


def test_a_logout_ends_the_session_also_for_a_copy_of_its_cookie(client):
    client.log_in("mia", PASSWORD)
    copied = client.cookie
    answer = client.post("/logout", client.get("/").hidden("/logout"))
    client.cookie = copied

    assert answer.location == "/"
    assert client.get("/").status == 303


@pytest.mark.parametrize(("name", "password"), [("mia", "wrong"), ("nobody", PASSWORD), ("", ""), ("mia\n", PASSWORD)])
def test_a_wrong_login_does_not_tell_what_is_wrong(users, name, password):
    with page(auth_file=users) as client:
        answer = client.log_in(name, password)

    assert (answer.status, client.cookie) == (401, "")
    assert "The name or the password is wrong." in answer.plain


def test_after_some_failures_the_right_password_is_refused_too(users):
    with page(auth_file=users) as client:
        wrong = [client.log_in("mia", "wrong").status for _ in range(PER_PAIR)]
        answer = client.log_in("mia", PASSWORD)

    assert wrong == [401] * PER_PAIR
    assert (answer.status, client.cookie) == (429, "")
    assert 0 < int(answer.headers["retry-after"]) <= WINDOW_S


def test_a_removed_user_and_a_new_password_end_sessions(tmp_path):
    path = tmp_path / "users.toml"
    add_user(path, "mia", PASSWORD)
    add_user(path, "tom", PASSWORD)
    with page(auth_file=path, require_login=True) as client:
        other = PageClient(client.origin)
        client.log_in("mia", PASSWORD)
        other.log_in("tom", PASSWORD)
        add_user(path, "mia", f"{PASSWORD} 2", replaces=True)
        remove_user(path, "tom")

        assert (client.get("/").status, other.get("/").status) == (303, 303)
        assert (other.log_in("tom", PASSWORD).status, client.log_in("mia", f"{PASSWORD} 2").status) == (401, 303)


# --- attacks ---


def test_a_forged_cookie_is_no_session(client):
    client.log_in("mia", PASSWORD)
    name, _, cookie = client.cookie.partition("=")
    body, _, signature = cookie.partition(".")
    session = msgspec.json.decode(base64.urlsafe_b64decode(body), type=Session)
    admin = base64.urlsafe_b64encode(msgspec.json.encode(msgspec.structs.replace(session, name="root"))).decode()
    elsewhere = Sessions(b"another process").begin("mia", session.seal)
    forged = [
        f"{admin}.{signature}", f"{body}.{'0' * 64}", f"{body}.", body, "", ".", "a.b", elsewhere, f"{cookie}x", "é.é",
        "x" * 5_000,
    ]  # fmt: skip

    for one in forged:
        client.cookie = f"{name}={one}".encode().decode("latin-1")
        assert client.get("/").status == 303, one
    client.cookie = f"{name}={cookie}"
    assert client.get("/").status == 200


@pytest.mark.parametrize(
    ("origin", "headers"),
    [
        ("https://evil.example", {}),
        ("null", {}),
        ("http://", {}),
        ("http://[", {}),
        (None, {}),
        ("", {"Sec_Fetch_Site": "cross-site"}),
        ("", {"Sec_Fetch_Site": "same-site"}),
        ("https://127.0.0.1", {}),
    ],
)
def test_a_form_of_another_site_is_refused(client, origin, headers):
    answer = client.post("/login", {"name": "mia", "password": PASSWORD}, origin=origin, **headers)

    assert (answer.status, client.cookie) == (403, "")
    assert "The form was not sent by this page" in answer.plain


@pytest.mark.parametrize(
    "address",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "",
        "\t//e",
        "/a\r\nSet-Cookie: a=b",
        "evil.example",
    ],
)
def test_a_login_never_leads_to_another_site(client, address):
    answer = client.post("/login", {"name": "mia", "password": PASSWORD, "next": address})

    assert (answer.status, answer.location) == (303, "/")
    assert local_path(address) == "/"


def test_a_body_that_is_no_form_is_refused_with_a_sentence(client):
    large = client.post("/login", {"name": "x" * 200_000})
    other = client.post("/login", {}, Content_Type="application/json")
    many = client.post("/login", {f"f{number}": "" for number in range(1_000)})

    assert [large.status, other.status, many.status] == [413, 415, 400]
    assert "The request has the type 'application/json'" in other.plain


def test_a_form_token_is_for_one_session_and_for_one_use(monkeypatch):
    tokens = FormTokens(b"secret")
    token = tokens.new("a")
    for session, wrong in (("b", token), ("a", f"{token}0"), ("a", ""), ("a", FormTokens(b"other").new("a"))):
        with pytest.raises(Refused, match="does not belong to your session"):
            tokens.spend(session, wrong)
    tokens.spend("a", token)
    with pytest.raises(Refused, match="already sent"):
        tokens.spend("a", token)

    late, now_s = tokens.new("a"), time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + FORM_S + 1)
    with pytest.raises(Refused, match="older than 30 minutes"):
        tokens.spend("a", late)


def test_a_session_ends_after_a_working_day(monkeypatch):
    sessions, now_s = Sessions(b"secret"), time.time()
    cookie = sessions.begin("mia", "seal")
    known = sessions.read(cookie)
    monkeypatch.setattr(time, "time", lambda: now_s + SESSION_S + 1)

    assert known is not None
    assert known.name == "mia"
    assert sessions.read(cookie) is None


# --- reading ---


def test_only_probes_metrics_and_the_login_are_open(client):
    assert [client.get(path).status for path in ("/healthz", "/metrics", "/login", "/static/page.css")] == [200] * 4
    assert client.get("/readyz").status in (200, 503)
    assert [client.get(path).status for path in ("/api/groups", "/events/groups")] == [401, 401]
    assert [client.get(path).status for path in ("/", "/groups/a", "/nothing", "/login/x", "/static")] == [303] * 5
    assert client.post("/", {}).status == 401


def test_without_changes_the_page_has_no_form_for_them(users):
    with page(auth_file=users) as client:
        client.log_in("mia", PASSWORD)

        assert client.get("/groups/billing/change").status == 404
        assert client.post("/groups/billing/change/rebalance", {}).status == 404
        assert "Change" not in client.get("/").plain


# --- proxies ---


def test_a_trusted_proxy_names_the_user():
    with page(auth_header="X-Forwarded-User", trusted_proxies="127.0.0.1", require_login=True) as client:
        assert "mia" in client.get("/", X_Forwarded_User="mia").plain
        assert client.get("/").status == 403
        assert client.get("/", X_Forwarded_User="<script>").status == 403
        assert client.get("/login").status == 404


def test_anybody_else_may_not_name_a_user():
    with page(auth_header="X-Forwarded-User", trusted_proxies="10.0.0.9", require_login=True) as client:
        spoofed = {"X_Forwarded_User": "mia", "X_Forwarded_For": "10.0.0.9", "Forwarded": "for=10.0.0.9"}
        answer = client.get("/", **spoofed)

    assert answer.status == 403
    assert "does not come through a trusted proxy" in answer.text


def test_behind_a_proxy_passwords_need_https(users):
    with page(auth_file=users, trusted_proxies="127.0.0.1", public_url="https://page.example") as client:
        fields = {"name": "mia", "password": PASSWORD}
        plain = client.post("/login", fields, origin="https://page.example", X_Forwarded_Proto="http")
        assert (plain.status, client.cookie) == (403, "")
        safe = client.post("/login", fields, origin="https://page.example", X_Forwarded_Proto="http, https")

    assert safe.status == 303
    assert "Secure" in safe.headers["set-cookie"].split("; ")
    assert safe.headers["set-cookie"].startswith("__Host-wakeroll=")


def test_failures_count_for_the_client_behind_the_proxy(users):
    """Otherwise one client could lock out all others; and a client cannot choose its own address."""
    with page(auth_file=users, trusted_proxies="127.0.0.1", insecure_http=True) as client:
        for number in range(PER_PAIR):
            client.post("/login", {"name": "mia", "password": "wrong"}, X_Forwarded_For=f"9.9.9.{number}, 203.0.113.5")
        same = client.post("/login", {"name": "mia", "password": PASSWORD}, X_Forwarded_For="1.1.1.1, 203.0.113.5")
        other = client.post("/login", {"name": "mia", "password": PASSWORD}, X_Forwarded_For="203.0.113.6")

    assert (same.status, other.status) == (429, 303)


# --- limits ---


def test_attempts_are_counted_per_pair_and_per_address_until_they_are_old():
    now = [0.0]
    limits = LoginLimits(lambda: now[0])
    assert [limits.begin("mia", "10.0.0.1") for _ in range(PER_PAIR)] == [0.0] * PER_PAIR
    assert limits.begin("mia", "10.0.0.1") == WINDOW_S
    assert limits.begin("mia", "10.0.0.2") == 0.0
    for number in range(PER_ADDRESS - PER_PAIR):
        assert limits.begin(f"user-{number}", "10.0.0.1") == 0.0
    assert limits.begin("another", "10.0.0.1") == WINDOW_S
    assert [limits.begin("mia", f"fd00::{number}") for number in range(PER_PAIR + 1)][-1] == WINDOW_S
    now[0] = WINDOW_S
    assert limits.begin("mia", "10.0.0.1") == 0.0


def test_a_login_forgets_the_failures_of_its_user():
    limits = LoginLimits(lambda: 0.0)
    for _ in range(PER_PAIR - 1):
        limits.begin("mia", "10.0.0.1")
    limits.begin("mia", "10.0.0.1")
    limits.succeeded("mia", "10.0.0.1")

    assert limits.begin("mia", "10.0.0.1") == 0.0


def test_the_memory_of_attempts_is_bounded():
    limits = LoginLimits(lambda: 0.0)
    for number in range(MOST_KEYS):
        limits.begin(f"user-{number}", f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")

    assert len(limits._attempts) <= MOST_KEYS


# --- the file of users, and the options ---


def test_the_file_of_users_is_its_owners_alone_and_has_no_password(users):
    assert users.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in users.read_text()
    assert list(read_users(users)) == ["mia"]
    assert UserFile(users).verify("mia", PASSWORD)
    assert not UserFile(users).verify("mia", PASSWORD + "x" * 2_000)


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("", 0o600, "there is no user in"),
        ("a = 1", 0o600, "the entry 'a' in .* is not valid"),
        ('[a]\npassword = "plain"', 0o600, "the entry 'a' in .* is not valid"),
        ('[a]\npassword = "scrypt:9999999:8:1:' + "0" * 32 + ":" + "0" * 64 + '"', 0o600, "the entry 'a' in"),
        ('[a]\nrole = "root"', 0o600, "the entry 'a' in .*: the role is 'root'; it must be one of: viewer, operator"),
        ('[a]\ngroups = "orders"', 0o600, "the entry 'a' in .*: the groups are 'orders'; they must be 1 to 100"),
        ("[a]\ngroups = [7]", 0o600, "the entry 'a' in .*: a pattern of groups is '7'"),
        ("[a", 0o600, "are not TOML"),
        ("", 0o640, "chmod 600"),
    ],
)
def test_a_file_of_users_that_cannot_be_used_is_refused_with_a_sentence(tmp_path, text, mode, sentence):
    path = tmp_path / "users.toml"
    path.write_text(text)
    path.chmod(mode)

    with pytest.raises(InvalidUsers, match=sentence):
        UserFile(path)


def test_a_file_that_becomes_unusable_locks_everybody_out(tmp_path):
    path = tmp_path / "users.toml"
    add_user(path, "mia", PASSWORD)
    file = UserFile(path)
    path.chmod(0o644)
    assert not file.verify("mia", PASSWORD)
    path.chmod(0o600)
    assert file.verify("mia", PASSWORD)


LOGIN = {"auth_header": "X-User", "trusted_proxies": "10.0.0.1"}


@pytest.mark.parametrize(
    ("options", "host", "sentence"),
    [
        ({"allow_changes": True}, "127.0.0.1", "--allow-changes needs a login"),
        ({"allow_changes": True, **LOGIN}, "127.0.0.1", "--allow-changes needs brokers"),
        ({"require_login": True}, "127.0.0.1", "--require-login needs a login"),
        ({"auth_header": "X-User"}, "127.0.0.1", "--auth-header needs --trusted-proxies"),
        ({"auth_header": "X User", "trusted_proxies": "10.0.0.1"}, "127.0.0.1", "it must be the name of a header"),
        ({"auth_file": Path("users")}, "0.0.0.0", "unencrypted; put a proxy with https"),
        ({"trusted_proxies": "0.0.0.0/0"}, "127.0.0.1", "is every address"),
        ({"trusted_proxies": "proxy.example"}, "127.0.0.1", "names 'proxy.example'"),
        ({"public_url": "page.example"}, "127.0.0.1", "--public-url is 'page.example'"),
        ({"public_url": "https://page.example:x"}, "127.0.0.1", "--public-url is"),
        ({"public_url": "https://page.example/path"}, "127.0.0.1", "an address without a path"),
    ],
)  # fmt: skip
def test_options_that_protect_nothing_are_refused(options, host, sentence):
    with pytest.raises(InvalidUsage, match=sentence):
        AccessOptions(**options).check(host, Settings())


def test_changes_need_the_key_of_an_operator(tmp_path):
    """The development keys are published: anybody could make such a change."""
    options, keys = AccessOptions(allow_changes=True, **LOGIN), tmp_path / "keys.toml"
    with pytest.raises(InvalidUsage, match="needs the operator's key"):
        options.check("127.0.0.1", Settings(bootstrap="127.0.0.1:9"))
    add_key(keys, new_key("observer"))
    with pytest.raises(InvalidUsage, match="no key of the role operator"):
        options.check("127.0.0.1", Settings(bootstrap="127.0.0.1:9", keys=str(keys)))
    add_key(keys, new_key("operator"))
    options.check("127.0.0.1", Settings(bootstrap="127.0.0.1:9", keys=str(keys)))
