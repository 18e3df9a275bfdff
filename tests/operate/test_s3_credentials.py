"""Keys of an object store that a role gives: each client fetches new ones before, or when, the old ones end."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from tests.support.running_processes import ROOT
from tests.support.systems.certificates import Authority
from tests.support.systems.key_issuer import METADATA_VARIABLES, KeyIssuer
from tests.support.systems.s3_server import BUCKET, S3Server
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until

pytestmark = [pytest.mark.operate, pytest.mark.spark]

ROWS = 3


@pytest.fixture(scope="module")
def table(s3: S3Server) -> str:
    """A Delta table in the store."""
    options = {**s3.environment, "AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag"}
    deltalake.write_deltalake(f"s3://{BUCKET}/table", pa.table({"number": range(ROWS)}), storage_options=options)
    return f"s3a://{BUCKET}/table"


@contextmanager
def issuer_for(client: str, folder: Path) -> Iterator[tuple[KeyIssuer, Mapping[str, str]]]:
    """Provide an issuer of keys, and the environment in which a client trusts it.

    deltalake and obstore send a token of a service account by https only. They trust the authorities of the system.
    """
    if client == "spark":
        with KeyIssuer() as issuer:
            yield issuer, {}
        return
    authority = Authority(folder / "authority")
    certificate = authority.certify("sts", ["IP:127.0.0.1"])
    with KeyIssuer(certificate=certificate) as issuer:
        yield issuer, {"SSL_CERT_FILE": str(authority.certificate)}


@contextmanager
def reading(client: str, table: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Callable[[], str]]:
    """Provide a function by which a process with these variables of AWS, and no others, reads a table once."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.systems.s3_reader", client, table, str(folder / "work")],
        cwd=ROOT,
        env={**inherited, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answers = process.stdin, process.stdout

    def read() -> str:
        asked.write("\n")
        asked.flush()
        return answers.readline().strip()

    with process:
        assert answers.readline() == "ready\n"
        yield read
        asked.close()


@pytest.mark.parametrize("client", ["obstore", "deltalake", "spark"])
def test_a_token_of_a_service_account_is_read_again(s3: S3Server, table: str, client: str, tmp_path: Path):
    """The kubelet replaces its file about once per hour; then the token service accepts the new one only."""
    token = tmp_path / "token"
    token.write_text("first")
    with issuer_for(client, tmp_path) as (issuer, trust):
        issuer.valid_token = "first"
        role = {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/wakeroll",
            "AWS_ROLE_SESSION_NAME": "wakeroll",
            "AWS_ENDPOINT_URL_STS": issuer.address,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with reading(client, table, tmp_path, {**role, **trust, **store_of(s3)}) as read:
            assert read() == f"rows {ROWS}"
            token.write_text("second")
            issuer.valid_token = "second"
            read_with_new_keys(s3, issuer, read)


@pytest.mark.parametrize("source", ["machine", "agent"])
@pytest.mark.parametrize("client", ["obstore", "deltalake", "spark"])
def test_keys_of_a_machine_or_of_an_agent_are_fetched_again(
    s3: S3Server, table: str, client: str, source: str, tmp_path: Path
):
    """A machine's role is that of EC2; an agent beside the process gives the keys of a task or of a pod."""
    token = tmp_path / "token"
    token.write_text("token of the pod")
    with KeyIssuer() as issuer:
        given = {
            "machine": dict.fromkeys(METADATA_VARIABLES, issuer.address),
            "agent": {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{issuer.address}/agent",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
                "AWS_EC2_METADATA_DISABLED": "true",
            },
        }[source]
        with reading(client, table, tmp_path, {**given, **store_of(s3)}) as read:
            assert read() == f"rows {ROWS}"
            read_with_new_keys(s3, issuer, read)


def store_of(s3: S3Server) -> Mapping[str, str]:
    return {"WAKEROLL_S3_ENDPOINT": s3.endpoint, "WAKEROLL_S3_REGION": "us-east-1", "AWS_REGION": "us-east-1"}


def read_with_new_keys(s3: S3Server, issuer: KeyIssuer, read: Callable[[], str]) -> None:
    """Reject all keys that were issued, as if they had ended, and wait until the client reads with others."""
    before = len(issuer.issued)
    s3.revoked.update(issuer.issued)
    try:
        wait_until(lambda: read() == f"rows {ROWS}", "it reads with new keys", patience_s=PATIENCE_WITH_SPARK_S)
    finally:
        s3.revoked.difference_update(issuer.issued)
    assert len(issuer.issued) > before
