"""An OpenID Connect provider in a process of its own: the one of `oidc-provider-mock`, which also demands PKCE.

Its keys can be replaced while it runs, and it can be told to sign tokens for another client, or expired ones.
"""

import argparse
import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from html import unescape
from io import BytesIO
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tests.support.systems.page_client import Answer, PageClient
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.ports import free_ports


class Provider:
    """A running provider."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def set_user(self, name: str, **claims: object) -> None:
        """Create or replace a user, whose ID tokens have these claims."""
        body = json.dumps({"preferred_username": name, **claims}).encode()
        self._send(Request(f"{self.address}/users/{name}", body, {"Content-Type": "application/json"}, method="PUT"))

    def rotate_keys(self) -> None:
        """Replace the keys that sign tokens; the old ones are withdrawn."""
        self._send(Request(f"{self.address}/rotate-keys", b"", method="POST"))

    def approve(self, address: str, name: str) -> str:
        """Log a user in at the address to which the page has led; return the address to which the provider leads."""
        return self._send(Request(address, urlencode({"sub": name}).encode(), method="POST"))

    def _send(self, request: Request) -> str:
        """Send a request; return the address of a redirect, which is not followed."""
        try:
            with build_opener(_NoRedirects()).open(request, timeout=60):
                return ""
        except HTTPError as error:
            answer = error
        with answer:
            assert answer.code in (302, 303), answer.read().decode()
            return str(answer.headers["location"])


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def log_in_at(provider: Provider, client: PageClient, name: str, *, following: str = "/", **changed: str) -> Answer:
    """Log in as a browser does, by the page, the provider and back; return the page's last answer.

    Args:
        provider: the provider.
        client: the browser.
        name: name of the user.
        following: page that was wanted.
        changed: parameters of the request to the provider that somebody on the way changes.
    """
    begun = client.get(f"/login/oidc?{urlencode({'next': following})}")
    assert begun.status == 302, begun.plain
    parts = urlsplit(begun.location)
    query = dict(parse_qsl(parts.query)) | changed
    back = provider.approve(urlunsplit(parts._replace(query=urlencode(query))), name)
    assert back.startswith(f"{client.origin}/login/callback?"), back
    return client.get(back.removeprefix(client.origin))


def led_to(answer: Answer) -> str:
    """Return the address to which a page leads at once."""
    found = re.search(r'http-equiv="refresh" content="0;url=([^"]*)"', answer.text)
    return unescape(found[1]) if found else ""


@contextmanager
def oidc_provider(*options: str, port: int = 0) -> Iterator[Provider]:
    """Run a provider; `options` are those of this module's program."""
    port = port or free_ports(1)[0]
    command = [sys.executable, "-m", "tests.support.systems.oidc_provider", "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    provider = Provider(port)
    try:
        wait_until(lambda: _answers(provider) or process.poll() is not None, "the provider answers")
        assert process.poll() is None, process.communicate()
        yield provider
    finally:
        process.terminate()
        process.communicate()


def _answers(provider: Provider) -> bool:
    try:
        provider._send(Request(f"{provider.address}/jwks"))
    except OSError:
        return False
    return True


# --- the program ---

_Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class DemandsPkce:
    """A provider that gives a token only to the client that began the login, as RFC 7636 has it."""

    def __init__(self, app: _Wsgi) -> None:
        self._app = app
        self._challenges: dict[str, str] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        query = parse_qs(environ["QUERY_STRING"])
        if environ["PATH_INFO"] == "/oauth2/token":
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            environ["wsgi.input"] = BytesIO(body)
            fields = parse_qs(body.decode())
            digest = hashlib.sha256(fields.get("code_verifier", [""])[0].encode()).digest()
            wanted = self._challenges.pop(fields["code"][0], None)
            if base64.urlsafe_b64encode(digest).decode().rstrip("=") != wanted:
                start("400 Bad Request", [("Content-Type", "application/json")])
                return [b'{"error": "invalid_grant", "error_description": "the code_verifier is wrong"}']

        def noting(status: str, headers: Sequence[tuple[str, str]], *rest: Any) -> Any:
            location = parse_qs(urlsplit(dict(headers).get("Location", "")).query)
            if "code" in location and query.get("code_challenge_method") == ["S256"]:
                self._challenges[location["code"][0]] = query["code_challenge"][0]
            return start(status, headers, *rest)

        return self._app(environ, noting)


def main() -> None:
    """Run a provider until a signal."""
    import authlib.jose
    import flask
    import oidc_provider_mock
    import werkzeug.serving
    from authlib.oidc.core.grants.implicit import OpenIDImplicitGrant
    from oidc_provider_mock import _app

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--audience", default="", help="client for which tokens are signed")
    parser.add_argument("--lasts", type=int, default=3_600, help="time until tokens expire (s)")
    asked = parser.parse_args()
    if asked.audience:
        assert hasattr(OpenIDImplicitGrant, "get_audiences")
        _app.OpenIDCode.get_audiences = lambda *_: [asked.audience]
    # A public client has no secret.
    _app.AuthorizationCodeGrant.TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post", "none"]
    app = oidc_provider_mock.app(access_token_max_age=timedelta(seconds=asked.lasts))

    @app.post("/rotate-keys")
    def rotate_keys() -> tuple[str, int]:
        flask.g.oidc_provider_mock_storage.jwk = authlib.jose.RSAKey.generate_key(is_private=True)
        return "", 204

    app.wsgi_app = DemandsPkce(app.wsgi_app)
    werkzeug.serving.make_server("127.0.0.1", asked.port, app, threaded=True).serve_forever()


if __name__ == "__main__":
    main()
