"""A broker that encrypts all connections, for measurements of what TLS costs."""

import subprocess
from pathlib import Path

from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.ports import HOST


def tls_broker(folder: Path) -> tuple[EmbeddedBroker, Path]:
    """Return a broker that is not started, and the file of client settings with which it is reached.

    Raises:
        subprocess.CalledProcessError: openssl cannot make a certificate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(folder, "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 2 "
             f"-keyout broker.key -out broker.crt -subj /CN=broker -addext subjectAltName=IP:{HOST}")  # fmt: skip
    certificate, both = (folder / "broker.crt").absolute(), (folder / "broker.pem").absolute()
    both.write_bytes((folder / "broker.key").read_bytes() + certificate.read_bytes())
    client = folder / "client.properties"
    client.write_text(f"security.protocol=SSL\nssl.ca.location={certificate}\n", encoding="utf-8")
    settings = {
        "listener.security.protocol.map": "CLIENTS:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
    }
    login = {"security.protocol": "SSL", "ssl.ca.location": str(certificate)}
    return EmbeddedBroker(folder / "broker", settings=settings, login=login), client


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, capture_output=True, check=True)
