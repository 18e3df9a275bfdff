"""Certificates of a test: an authority, and keys that it has certified, made by openssl."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


class Authority:
    """A certificate authority; `ca.pem` in its folder is its certificate."""

    def __init__(self, folder: Path) -> None:
        """Make the authority's key and certificate."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _openssl(
            folder,
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "2"),
            *("-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority of the tests"),
        )

    @property
    def certificate(self) -> Path:
        """The file by which clients and brokers verify certificates."""
        return self.folder / "ca.pem"

    def certify(self, name: str, addresses: Sequence[str] = ()) -> Path:
        """Return a PEM file with a new key, in PKCS #8, and its certificate.

        Args:
            name: the common name.
            addresses: what a client may call the owner, like ``DNS:localhost``.
        """
        key, request, certificate, both = (self.folder / f"{name}.{end}" for end in ("key", "csr", "crt", "pem"))
        _openssl(
            self.folder,
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"),
            *("-keyout", key.name, "-out", request.name, "-subj", f"/CN={name}"),
            *(("-addext", f"subjectAltName={','.join(addresses)}") if addresses else ()),
        )
        _openssl(
            self.folder,
            *("x509", "-req", "-in", request.name, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-copy_extensions", "copy", "-out", certificate.name),
        )
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        both.chmod(0o600)
        return both


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"openssl {' '.join(arguments)}: {done.stderr}"
