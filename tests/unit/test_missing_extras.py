"""A command whose extra is not installed names it, and has no traceback."""

import subprocess
import sys

import pytest

from tests.support.running_processes import ROOT, run_process
from tests.support.waiting import PATIENCE_S

WITHOUT = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # an import fails
from wakeroll_pipeline.cli import main
main()
"""
OF_SPARK = "pyspark,py4j,delta,pandas,numpy,pyarrow"


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        ("run --bootstrap localhost:1", OF_SPARK, "spark"),
        ("tap orders --bootstrap localhost:1", OF_SPARK, "spark"),
        ("observe --bootstrap localhost:1", "prometheus_client", "ask"),
    ],
)
def test_the_extra_is_named(tmp_path, words, missing, extra):
    """Somebody who installed too little finds out how to get further."""
    done = run_process([sys.executable, "-c", WITHOUT, missing, *words.split(), "--home", str(tmp_path)])

    assert done.returncode == 2
    assert done.stderr.startswith(f"wakeroll: this command needs the extra `{extra}` (")
    assert done.stderr.endswith(f"is missing); install it with: pip install 'wakeroll[{extra}]'\n")
    assert "Traceback" not in done.stderr


def test_the_extra_of_an_identity_provider_is_named(tmp_path):
    """Before anything is connected, and not when the first user logs in."""
    file = tmp_path / "oidc.toml"
    file.write_text('issuer = "https://sso.example"\nclient_id = "page"\n[roles."*"]\nrole = "viewer"\n')
    words = ["serve", "--bootstrap", "localhost:1", "--oidc", str(file), "--home", str(tmp_path)]
    done = run_process([sys.executable, "-c", WITHOUT, "authlib,httpx2", *words])

    assert (done.returncode, done.stderr) == (
        2,
        "wakeroll: the login by an identity provider needs the extra `oidc` (httpx2 is missing); install it with: "
        "pip install 'wakeroll[oidc]'\n",
    )


def test_an_observer_needs_neither_java_nor_spark(tmp_path):
    """It runs on small machines; PySpark would make its image ten times as large."""
    program = [sys.executable, "-c", WITHOUT, OF_SPARK, "observe", "--bootstrap", "localhost:1"]
    with subprocess.Popen([*program, "--home", str(tmp_path)], stderr=subprocess.PIPE, text=True, cwd=ROOT) as observer:
        assert observer.stderr is not None
        lines = iter(observer.stderr.readline, "")
        waits = any("no Kafka broker answered at localhost:1" in line for line in lines)
        observer.terminate()
        observer.communicate(timeout=PATIENCE_S)

    assert (waits, observer.returncode) == (True, 0)


def test_without_the_command_s_packages_one_sentence_names_the_extra():
    """`pip install wakeroll` is the SDK; its script is there all the same."""
    done = run_process([sys.executable, "-c", WITHOUT, "typer,rich", "groups"])

    assert (done.returncode, done.stderr) == (
        1,
        "wakeroll: the command needs the extra `ask`; install it with: pip install 'wakeroll[ask]'\n",
    )
