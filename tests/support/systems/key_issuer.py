"""What gives a process temporary keys of AWS: the token service, the metadata of a machine, and an agent of a pod."""

import http.server
import json
import ssl
import threading
import urllib.parse
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

_STS = "https://sts.amazonaws.com/doc/2011-06-15/"
METADATA_VARIABLES = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT")
"""Environment variables by which clients in Java and in Rust find the metadata of a machine elsewhere."""
_METADATA = "/latest/meta-data/iam/security-credentials/"


class KeyIssuer:
    """Issues keys with numbers, for the time of a `with` block. Each key has the same short life.

    A role of a service account sends a token to `/`, as to AWS STS. A machine's role is at the address of the metadata
    of EC2, and a pod's agent at `/agent`.
    """

    def __init__(self, life_s: float = 30.0, certificate: Path | None = None) -> None:
        """Prepare.

        Args:
            life_s: seconds for which a key is valid.
            certificate: file with key and certificate, for TLS.
        """
        self._life_s = life_s
        self.valid_token = ""
        """Token of a service account that is accepted."""
        self.issued: list[str] = []
        """Access keys, oldest first."""
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
        self._server.issuer = self  # type: ignore[attr-defined]
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if certificate is None else "https"

    @property
    def address(self) -> str:
        """The URL, without a slash at the end."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def issue(self) -> tuple[str, str]:
        """Return a new access key, and its end in ISO 8601."""
        self.issued.append(f"ASIA{len(self.issued):016d}")
        end = datetime.now(UTC) + timedelta(seconds=self._life_s)
        return self.issued[-1], end.strftime("%Y-%m-%dT%H:%M:%SZ")

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _issuer(self) -> KeyIssuer:
        issuer: KeyIssuer = self.server.issuer  # type: ignore[attr-defined]
        return issuer

    def do_PUT(self) -> None:
        """Open a session of the metadata service, version 2."""
        self._send("session", {"X-aws-ec2-metadata-token-ttl-seconds": "21600"})

    def do_GET(self) -> None:
        if self.path == _METADATA:
            self._send("role")
        elif self.path == f"{_METADATA}role" or self.path == "/agent":
            key, end = self._issuer.issue()
            secret = {"SecretAccessKey": "secret", "Token": "session", "Expiration": end}
            self._send(json.dumps({"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": key, **secret}))
        else:
            self._send("", status=404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        asked = urllib.parse.parse_qs(body or urllib.parse.urlsplit(self.path).query)
        [token] = asked["WebIdentityToken"]
        if token != self._issuer.valid_token:
            error = (
                "<Error><Type>Sender</Type><Code>InvalidIdentityToken</Code><Message>No such token.</Message></Error>"
            )
            self._send(f'<ErrorResponse xmlns="{_STS}">{error}</ErrorResponse>', status=400)
            return
        key, end = self._issuer.issue()
        found = f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
        found += f"<SessionToken>session</SessionToken><Expiration>{end}</Expiration>"
        role = "<Arn>arn:aws:sts::1:assumed-role/r/s</Arn><AssumedRoleId>A:s</AssumedRoleId>"
        role, name = f"<AssumedRoleUser>{role}</AssumedRoleUser>", "AssumeRoleWithWebIdentity"
        self._send(
            f'<{name}Response xmlns="{_STS}"><{name}Result><Credentials>{found}</Credentials>{role}</{name}Result>'
            f"<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{name}Response>"
        )

    def _send(self, text: str, headers: dict[str, str] | None = None, status: int = 200) -> None:
        content = text.encode()
        self.send_response_only(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing on the test's output."""
