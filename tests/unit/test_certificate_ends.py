"""When certificates end, read from files that openssl has made."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.support.systems.certificates import Authority
from wakeroll_pipeline.metrics.certificate_ends import certificate_ends

DAY_S = 86_400


def made(folder: Path, name: str, days: int) -> str:
    """Return a certificate that ends after so many days, as PEM."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-days", str(days), "-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={name}"]
    subprocess.run(command, check=True, capture_output=True)
    return certificate.read_text()


def test_a_certificate_of_an_authority_and_that_authority(tmp_path):
    """The file of a client has its key too."""
    authority = Authority(tmp_path)
    files = {"ssl.certificate.location": str(authority.certify("a")), "ssl.ca.location": str(authority.certificate)}

    ends = certificate_ends(files)

    assert ends.keys() == files.keys()
    assert all(abs(end_s - time.time() - 2 * DAY_S) < 3_600 for end_s in ends.values())


@pytest.mark.parametrize(("name", "days"), [("ssl.certificate.pem", 3), ("ssl.ca.pem", 40_000)])
def test_a_chain_ends_with_its_first_certificate_and_a_list_of_authorities_with_its_last_one(tmp_path, name, days):
    """40,000 days are beyond 2049, where the encoding of the time is another one."""
    texts = [made(tmp_path, "short", 3), made(tmp_path, "long", 40_000)]

    [end_s] = certificate_ends({name: "".join(texts)}).values()

    assert abs(end_s - time.time() - days * DAY_S) < 3_600


@pytest.mark.parametrize(
    "content", [None, "", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_a_file_that_cannot_be_read_has_no_end(tmp_path, content):
    """Kafka's client says what it cannot use; a scrape must not fail."""
    file = tmp_path / "client.pem"
    if content is not None:
        file.write_text(content)

    assert certificate_ends({"ssl.certificate.location": str(file)}) == {}
