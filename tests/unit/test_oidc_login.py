"""Logins of the page by an identity provider that runs in a process of its own, over HTTP."""

import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client import CollectorRegistry

from tests.support.ledgers import PARTITIONS
from tests.support.systems.oidc_provider import Provider, led_to, log_in_at, oidc_provider
from tests.support.systems.page_client import PageClient
from tests.support.systems.web_site import answering
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.local.ports import free_ports
from wakeroll_pipeline.serve.access import oidc_client
from wakeroll_pipeline.serve.access.access_options import AccessOptions
from wakeroll_pipeline.serve.access.gate import Gate
from wakeroll_pipeline.serve.access.oidc_file import read_provider
from wakeroll_pipeline.serve.access.rights import Rights
from wakeroll_pipeline.serve.access.user_file import add_user
from wakeroll_pipeline.serve.web_app import WebApp
from wakeroll_pipeline.settings import Settings

PASSWORD = "correct horse battery"
CLIENT = "wakeroll-page"
ROLES = """
[roles.wakeroll-admins]
role = "administrator"

[roles.payments]
role = "operator"
groups = ["billing-*"]

[roles.staff]
role = "viewer"
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with oidc_provider() as running:
        yield running


@pytest.fixture(autouse=True)
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "client-secret"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    return file


def file_of(folder: Path, issuer: str, lines: str = "", roles: str = ROLES) -> Path:
    path = folder / "oidc.toml"
    named = f'issuer = "{issuer}"\nclient_id = "{CLIENT}"\nclient_secret_file = "client-secret"\ntitle = "Our SSO"\n'
    path.write_text(f"{named}{lines}\n{roles}")
    return path


@contextmanager
def page(file: Path, **options: object) -> Iterator[PageClient]:
    """Serve an empty page for known users only; provide a client."""
    access = AccessOptions(**{"oidc": file, "require_login": True, **options})
    access.check("127.0.0.1", Settings())
    source = ViewSource(LiveModel(Topics(), PARTITIONS))
    with answering(WebApp(source, CollectorRegistry(), ["127.0.0.1"], gate=Gate(access))) as address:
        yield PageClient(address)


# --- a login ---


def test_a_user_of_the_provider_logs_in_and_out(provider, tmp_path, caplog):
    provider.set_user("mia", groups=["staff"])
    caplog.set_level(logging.INFO)
    with page(file_of(tmp_path, provider.address)) as client:
        form = client.get("/login?next=%2Fgroups%2Fbilling%3Fq%3Da")
        assert "Log in with Our SSO" in form.plain
        assert 'href="/login/oidc?next=%2Fgroups%2Fbilling%3Fq%3Da"' in form.text
        assert 'name="password"' not in form.text, "there are no users with passwords"

        answer = log_in_at(provider, client, "mia", following="/groups/billing?q=a")
        assert (answer.status, led_to(answer)) == (200, "/groups/billing?q=a")
        attributes = next(one for one in answer.headers.get_all("set-cookie") if one.startswith("wakeroll=")).split(
            "; "
        )
        assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=3600"} <= set(attributes)
        assert client.login_cookie == "", "the login is not under way any more"
        here = client.get("/")
        assert (here.status, "mia" in here.plain) == (200, True)

        copied, left = client.cookie, client.post("/logout", here.hidden("/logout"))
        end = urlsplit(led_to(left))
        assert f"{end.scheme}://{end.netloc}" == provider.address
        assert parse_qs(end.query)["post_logout_redirect_uri"] == [f"{client.origin}/"]
        assert parse_qs(end.query)["client_id"] == [CLIENT]
        client.cookie = copied
        assert client.get("/").status == 303, "a copy of the cookie is worth nothing either"
    assert "mia logged in by the identity provider from 127.0.0.1, with the role staff" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("claims", "line", "rights"),
    [
        ({"groups": ["staff", "wakeroll-admins"]}, "", Rights(role="administrator")),
        ({"groups": "payments"}, "", Rights(role="operator", groups=("billing-*",))),
        ({"realm_access": {"roles": ["payments"]}}, 'roles_claim = "realm_access.roles"', Rights(
            role="operator", groups=("billing-*",)
        )),
        ({"https://a.example/roles": ["staff"]}, 'roles_claim = "https://a.example/roles"', Rights(role="viewer")),
    ],
)  # fmt: skip
def test_the_first_role_of_the_file_that_a_user_has_counts(provider, tmp_path, claims, line, rights):
    provider.set_user("olga", **claims)
    file = file_of(tmp_path, provider.address, line)
    access = AccessOptions(oidc=file)
    gate = Gate(access)
    source = ViewSource(LiveModel(Topics(), PARTITIONS))
    with answering(WebApp(source, CollectorRegistry(), ["127.0.0.1"], gate=gate)) as address:
        client = PageClient(address)
        log_in_at(provider, client, "olga")
    session = gate.sessions.read(client.cookie.partition("=")[2].strip('"'))

    assert session is not None
    assert gate.oidc.rules.rights[session.role] == rights


def test_passwords_and_a_provider_may_stand_side_by_side(provider, tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, "tom", PASSWORD)
    provider.set_user("mia", groups=["staff"])
    with page(file_of(tmp_path, provider.address), auth_file=users) as client:
        other = PageClient(client.origin)
        form = client.get("/login")
        client.log_in("tom", PASSWORD)
        log_in_at(provider, other, "mia")

        assert "Our SSO" in form.plain
        assert 'name="password"' in form.text
        assert ("tom" in client.get("/").plain, "mia" in other.get("/").plain) == (True, True)
        assert client.post("/logout", client.get("/").hidden("/logout")).location == "/", "the provider knows no tom"


def test_a_session_ends_when_the_file_says_so(provider, tmp_path, monkeypatch):
    provider.set_user("mia", groups=["staff"])
    with page(file_of(tmp_path, provider.address, "session_minutes = 5")) as client:
        log_in_at(provider, client, "mia")
        before, now_s = client.get("/").status, time.time()
        monkeypatch.setattr(time, "time", lambda: now_s + 301)

        assert (before, client.get("/").status) == (200, 303)


# --- what the provider does ---


def test_a_login_works_after_the_provider_has_replaced_its_keys(provider, tmp_path):
    provider.set_user("mia", groups=["staff"])
    with page(file_of(tmp_path, provider.address)) as client:
        first = log_in_at(provider, client, "mia")
        provider.rotate_keys()
        second = log_in_at(provider, PageClient(client.origin), "mia")

        assert [first.status, second.status] == [200, 200]
        assert client.get("/").status == 200, "a session that has begun goes on"


@pytest.mark.parametrize(
    ("option", "reason"), [(("--audience", "another-client"), "aud"), (("--lasts", "-300"), "expired")]
)
def test_a_token_for_another_client_or_an_expired_one_is_refused(tmp_path, option, reason):
    with oidc_provider(*option) as provider, page(file_of(tmp_path, provider.address)) as client:
        provider.set_user("mia", groups=["wakeroll-admins"])
        answer = log_in_at(provider, client, "mia")

        assert (answer.status, client.cookie) == (403, "")
        assert "The token of the identity provider is not valid" in answer.plain
        assert reason in answer.plain


def test_a_provider_that_is_away_is_a_sentence_and_comes_back(tmp_path):
    """Sessions that have begun go on without it."""
    [port] = free_ports(1)
    with page(file_of(tmp_path, f"http://127.0.0.1:{port}")) as client:
        away = client.get("/login/oidc")
        with oidc_provider(port=port) as provider:
            provider.set_user("mia", groups=["staff"])
            back = log_in_at(provider, client, "mia")
            other = PageClient(client.origin)
            begun = other.get("/login/oidc")
            address = provider.approve(begun.location, "mia")
        gone = other.get(address.removeprefix(client.origin))

        assert [away.status, back.status, gone.status] == [503, 200, 503]
        assert f"The identity provider {provider.address} does not answer as expected" in away.plain
        assert other.cookie == ""
        assert client.get("/").status == 200


def test_a_provider_that_never_answers_costs_a_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(oidc_client, "DEADLINE_S", 0.5)
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=lambda: taken.append(silent.accept()[0]), daemon=True).start()
        issuer = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with page(file_of(tmp_path, issuer)) as client:
            answer = client.get("/login/oidc")

    assert answer.status == 503
    assert f"The identity provider {issuer} did not answer in" in answer.plain
    for one in taken:
        one.close()


def test_a_discovery_document_of_another_issuer_is_refused(provider, tmp_path):
    """Tokens would be those of somebody else."""
    issuer = provider.address.replace("127.0.0.1", "localhost") + "/"
    with page(file_of(tmp_path, issuer)) as client:
        answer = client.get("/login/oidc")

    assert answer.status == 502
    assert f"the file of --oidc names '{issuer}'" in answer.plain


def test_a_user_who_refuses_at_the_provider_is_told(provider, tmp_path):
    with page(file_of(tmp_path, provider.address)) as client:
        client.get("/login/oidc")
        answer = client.get("/login/callback?error=access_denied&error_description=%3Cb%3Eno&state=x")

    assert answer.status == 403
    assert "The identity provider refused the login (access_denied: <b>no)" in answer.plain
    assert "<b>no" not in answer.text


# --- attacks, and users who may not log in ---


@pytest.mark.parametrize("claims", [{}, {"groups": []}, {"groups": ["guests"]}, {"groups": {"staff": True}}])
def test_a_user_without_a_role_may_not_log_in(provider, tmp_path, claims):
    provider.set_user("eve", **claims)
    with page(file_of(tmp_path, provider.address)) as client:
        answer = log_in_at(provider, client, "eve")

        assert (answer.status, client.cookie) == (403, "")
        assert "Eve has no role on this page: the claim groups has none of those that may log in" in answer.plain
        assert client.get("/").status == 303


def test_a_role_for_everybody_is_named_by_a_star(provider, tmp_path):
    provider.set_user("eve")
    roles = '[roles.wakeroll-admins]\nrole = "administrator"\n[roles."*"]\nrole = "viewer"\n'
    with page(file_of(tmp_path, provider.address, roles=roles)) as client:
        assert log_in_at(provider, client, "eve").status == 200


@pytest.mark.parametrize("name", ["", "a b", "<script>", 7, None])
def test_a_claim_that_is_no_name_is_refused(provider, tmp_path, name):
    provider.set_user("odd", nick=name, groups=["staff"])
    with page(file_of(tmp_path, provider.address, 'user_claim = "nick"')) as client:
        answer = log_in_at(provider, client, "odd")

    assert (answer.status, client.cookie) == (403, "")
    assert "The claim nick is" in answer.plain


@pytest.mark.parametrize("state", ["forged", "", None])
def test_a_state_that_this_browser_did_not_get_is_refused(provider, tmp_path, state):
    """Somebody could log a user in as somebody else, and see what the user does then."""
    provider.set_user("mia", groups=["staff"])
    with page(file_of(tmp_path, provider.address)) as client:
        begun = client.get("/login/oidc")
        back = provider.approve(begun.location, "mia")
        code = parse_qs(urlsplit(back).query)["code"][0]
        query = f"code={code}" + ("" if state is None else f"&state={state}")
        forged = client.get(f"/login/callback?{query}")
        elsewhere = PageClient(client.origin).get(back.removeprefix(client.origin))

        assert [forged.status, elsewhere.status] == [400, 400]
        assert "was not begun in this browser" in forged.plain
        assert client.cookie == ""


def test_an_answer_works_once(provider, tmp_path):
    provider.set_user("mia", groups=["staff"])
    with page(file_of(tmp_path, provider.address)) as client:
        begun = client.get("/login/oidc")
        back = provider.approve(begun.location, "mia").removeprefix(client.origin)
        before = client.login_cookie
        first = client.get(back)
        client.cookie, client.login_cookie = "", before  # as somebody who has read the history of the browser
        second = client.get(back)

    assert (first.status, second.status, client.cookie) == (200, 403, "")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"nonce": "of-another-login"}, "The token of the identity provider is not valid"),
        ({"code_challenge": "A" * 43}, "The identity provider refused the login (invalid_grant"),
        ({"code_challenge_method": "plain"}, "The identity provider refused the login (invalid_grant"),
    ],
)
def test_a_request_that_is_changed_on_the_way_ends_in_no_session(provider, tmp_path, changed, sentence):
    provider.set_user("mia", groups=["staff"])
    with page(file_of(tmp_path, provider.address)) as client:
        answer = log_in_at(provider, client, "mia", **changed)

    assert (answer.status, client.cookie) == (403, "")
    assert sentence in answer.plain


def test_a_login_leads_to_no_other_site(provider, tmp_path):
    provider.set_user("mia", groups=["staff"])
    with page(file_of(tmp_path, provider.address)) as client:
        assert led_to(log_in_at(provider, client, "mia", following="//evil.example")) == "/"
        quoted = log_in_at(provider, client, "mia", following='/groups/"><script>')

    assert led_to(quoted) == '/groups/"><script>'
    assert "<script>" not in quoted.text


def test_behind_a_proxy_a_login_needs_https(provider, tmp_path):
    options = {"trusted_proxies": "127.0.0.1", "public_url": "https://page.example"}
    with page(file_of(tmp_path, provider.address), **options) as client:
        plain = client.get("/login/oidc", X_Forwarded_Proto="http")
        safe = client.get("/login/oidc", X_Forwarded_Proto="https")

    assert (plain.status, safe.status) == (403, 302)
    assert parse_qs(urlsplit(safe.location).query)["redirect_uri"] == ["https://page.example/login/callback"]
    assert "secure" in safe.headers["set-cookie"]


# --- the file ---


@pytest.mark.parametrize(
    ("lines", "roles", "sentence"),
    [
        ("user_claim = 7", ROLES, "Expected `str`, got `int`"),
        ("claim = 'x'", ROLES, "unknown field `claim`"),
        ("", "", "missing required field `roles`"),
        ("", '[roles.a]\nrole = "root"', "the role is 'root'; it must be one of: viewer, operator, administrator"),
        ("", '[roles.a]\nrole = "operator"\ngroups = []', "the groups are"),
        ("scope = 'profile'", ROLES, "the scope is 'profile'; it must contain openid"),
        ("session_minutes = 0", ROLES, "session_minutes"),
        ("ca_file = 'nowhere.pem'", ROLES, "there is no ca_file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_a_sentence(tmp_path, lines, roles, sentence):
    with pytest.raises(
        InvalidUsage, match=f"the identity provider in .*oidc.toml is not valid: .*{re.escape(sentence)}"
    ):
        read_provider(file_of(tmp_path, "https://sso.example", lines, roles))


@pytest.mark.parametrize(
    "issuer", ["sso.example", "https://", "https://sso.example/?a=b", "ftp://sso.example", "https://["]
)
def test_an_issuer_is_an_address(tmp_path, issuer):
    with pytest.raises(InvalidUsage, match=r"it must be an address like https://sso\.example/realms/main"):
        read_provider(file_of(tmp_path, issuer))


def test_a_provider_on_another_machine_needs_https(tmp_path):
    file = file_of(tmp_path, "http://sso.example")
    with pytest.raises(InvalidUsage, match="it must have https"):
        read_provider(file)
    assert read_provider(file, insecure_http=True).provider.client_id == CLIENT


def test_a_secret_that_others_may_read_is_refused(tmp_path, secret):
    file = file_of(tmp_path, "https://sso.example")
    secret.chmod(0o644)
    with pytest.raises(InvalidUsage, match=r"every user of this machine may read .*client-secret"):
        read_provider(file)
    secret.chmod(0o600)
    secret.write_text("\n")
    with pytest.raises(InvalidUsage, match=r"the client secret .* is empty"):
        read_provider(file)
    secret.unlink()
    with pytest.raises(InvalidUsage, match="cannot read the client secret"):
        read_provider(file)
    with pytest.raises(InvalidUsage, match=r"cannot read the identity provider in nowhere\.toml"):
        read_provider(Path("nowhere.toml"))


def test_one_of_them_names_the_user():
    options = AccessOptions(oidc=Path("x"), auth_header="X-User", trusted_proxies="10.0.0.1")
    with pytest.raises(InvalidUsage, match="--oidc and --auth-header exclude each other"):
        options.check("127.0.0.1", Settings())
    with pytest.raises(InvalidUsage, match="unencrypted; put a proxy with https"):
        AccessOptions(oidc=Path("x")).check("0.0.0.0", Settings())
