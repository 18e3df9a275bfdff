"""The options of metrics on the command line, and the errors for values that cannot be used."""

import socket

import pytest


@pytest.mark.parametrize("command", ["run", "observe", "tap", "up"])
def test_help_names_the_options_with_their_defaults(wakeroll, command):
    code, shown, _ = wakeroll(command, "--help")
    words = " ".join(shown.replace("│", " ").split())

    assert code == 0
    assert "--metrics-port PORT Port of /metrics, /healthz and /readyz" in words
    assert "default: 0, which is none" in words
    assert "--metrics-address ADDRESS Address on which metrics are exposed; default: 127.0.0.1" in words


@pytest.mark.parametrize("command", ["run", "observe"])
def test_a_port_in_use_ends_the_process_with_a_sentence(wakeroll, tmp_path, monkeypatch, command):
    """Before it looks for a broker or starts Spark: a typing error shows at once."""
    monkeypatch.setenv("WAKEROLL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WAKEROLL_CHECKPOINTS", str(tmp_path / "checkpoints"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, shown, said = wakeroll(command, "--bootstrap", "127.0.0.1:1", "--metrics-port", str(port))

    assert (code, shown) == (2, "")
    assert said.splitlines()[-1].startswith(
        f"wakeroll: cannot expose metrics on 127.0.0.1:{port}: Address already in use; choose another metrics_port"
    )
    assert "Traceback" not in said


def test_an_impossible_port_is_refused(wakeroll):
    code, _, said = wakeroll("observe", "--bootstrap", "127.0.0.1:1", "--metrics-port", "70000")

    assert code == 2
    assert "invalid setting: metrics_port is 70000; it must be a whole number from 0 to 65534" in said
