"""A client of the page that keeps its cookie as a browser does, and sends any header that a test names."""

import http.client
import re
from collections.abc import Mapping
from html import unescape
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit


class Answer(NamedTuple):
    """The answer to one request; redirects are not followed."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def location(self) -> str:
        return self.headers["location"] or ""

    @property
    def plain(self) -> str:
        """The text without markup, with single spaces."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())

    def hidden(self, action: str) -> dict[str, str]:
        """Return the hidden fields of the form that is sent to an address."""
        found = re.search(rf'<form method="post" action="{re.escape(action)}".*?</form>', self.text, re.DOTALL)
        assert found, f"no form for {action} in {self.plain}"
        fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', found[0])
        return {name: unescape(value) for name, value in fields}


class PageClient:
    """One browser of one user."""

    def __init__(self, address: str) -> None:
        self._host = urlsplit(address).netloc
        self.origin = f"http://{self._host}"
        self.cookie = ""
        """The session."""
        self.login_cookie = ""
        """The login that is under way at an identity provider."""

    def get(self, path: str, **headers: str) -> Answer:
        return self._request("GET", path, None, headers)

    def post(self, path: str, fields: Mapping[str, str], *, origin: str | None = "", **headers: str) -> Answer:
        """Send a form; `origin` is that of the page, unless a test names another one, or None for no such header."""
        if origin is not None:
            headers["Origin"] = origin or self.origin
        headers.setdefault("Content_Type", "application/x-www-form-urlencoded")
        return self._request("POST", path, urlencode(fields), headers)

    def log_in(self, name: str, password: str) -> Answer:
        return self.post("/login", {"name": name, "password": password})

    def _request(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self._host, timeout=120)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if cookies := [one for one in (self.cookie, self.login_cookie) if one]:
            sent["Cookie"] = "; ".join(cookies)
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read().decode())
        connection.close()
        for given in response.headers.get_all("set-cookie") or ():
            pair = given.partition(";")[0]
            value = "" if pair.endswith(('=""', "=null")) else pair
            if pair.startswith("wakeroll-login="):
                self.login_cookie = value
            else:
                self.cookie = value
        return answer
