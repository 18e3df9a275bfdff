"""Keys are rotated on a running deployment: by records, while key files change process by process."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.systems.replicas import coordinator, log_of
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.keys import add_key, new_client_key, new_key
from wakeroll_pipeline.kafka.new_deployment import ensure_deployment
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.runtime.run_status import running
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.e2e

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def old(broker: EmbeddedBroker, tmp_path: Path) -> Settings:
    """A deployment that does not exist yet, with a key file."""
    file = tmp_path / "old.toml"
    add_key(file, new_key("operator", "ops-1"))
    add_key(file, new_key("observer", "obs-1"))
    return Settings(
        bootstrap=broker.bootstrap,
        prefix=f"keys-{uuid.uuid4().hex[:6]}",
        home=str(tmp_path / "home"),
        checkpoints=str(tmp_path / "checkpoints"),
        keys=str(file),
    )


def rotated(settings: Settings, tmp_path: Path) -> str:
    """Write a key file with one operator's key and one tenant's key more, and return its path."""
    file = tmp_path / "new.toml"
    file.write_text(Path(settings.keys).read_text(encoding="utf-8"), encoding="utf-8")
    file.chmod(0o600)
    add_key(file, new_key("operator", "ops-2"))
    add_key(file, new_client_key("tenant.", "tenant-1"))
    return str(file)


def where(settings: Settings, keys: str | None = None, home: Path | None = None) -> list[str]:
    its = {"--bootstrap": settings.bootstrap, "--prefix": settings.prefix, "--home": str(home or settings.home)}
    return [word for pair in its.items() for word in pair] + ["--keys", keys or settings.keys]


def listed(wakeroll: Command, *options: str) -> dict[str, tuple[bool, bool]]:
    """Return whether each key is valid on record, and in the file."""
    code, said, complaint = wakeroll("keys", "list", "--json", *options)
    assert code == 0, complaint
    return {one["key_id"]: (one["on_record"], one["in_file"]) for one in json.loads(said)["keys"]}


def test_a_rotation_by_commands(old, wakeroll, tmp_path):
    """A new deployment has its keys on record; a new key is added, and the old one removed."""
    assert ensure_deployment(old) == []
    new = rotated(old, tmp_path)
    after = {"ops-1": (True, True), "obs-1": (True, True), "ops-2": (False, True), "tenant-1": (False, True)}
    assert listed(wakeroll, *where(old, new)) == after

    plan = wakeroll("keys", "publish", *where(old, new))
    still = listed(wakeroll, *where(old, new))
    done = wakeroll("keys", "publish", "--execute", *where(old, new))
    again = wakeroll("keys", "publish", "--execute", *where(old, new))

    assert plan[:2] == (
        0,
        "would become valid: ops-2, tenant-1. Nothing has changed; repeat the command with --execute\n",
    )
    assert still == after
    assert done[0] == 0, done
    assert done[1].startswith("valid: ops-2, tenant-1, from these offsets on: keys-")
    assert again[:2] == (0, "the keys on record are so already: nothing has changed\n")
    assert listed(wakeroll, *where(old, new)) == dict.fromkeys(after, (True, True))
    assert listed(wakeroll, *where(old))["ops-2"] == (True, False)

    removed = wakeroll("keys", "remove", "ops-1", "--execute", *where(old, new))
    late = wakeroll("keys", "publish", "--execute", *where(old))

    assert removed[1].startswith("invalid: ops-1, from these offsets on: keys-")
    assert late[0] == 2
    assert "the key file has no operator key that is valid on record" in late[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["remove", "nobody"], "no key 'nobody' is valid on record"),
        (["remove", "obs-1"], "no key of the role observer would be valid, so nobody could sign as observer any more"),
        (["remove"], "Missing argument 'KEY...'"),
    ],
)
def test_a_mistake_is_one_sentence(old, wakeroll, words, sentence):
    ensure_deployment(old)

    code, _, complaint = wakeroll("keys", *words, *where(old))

    assert (code, sentence in " ".join(complaint.split())) == (2, True), complaint


def test_the_development_keys_are_never_put_on_record(old, wakeroll):
    ensure_deployment(Settings(bootstrap=old.bootstrap, prefix=old.prefix, home=old.home))
    open_to_all = where(old)[:-2]

    code, _, complaint = wakeroll("keys", "publish", *open_to_all)
    _, said, _ = wakeroll("keys", "list", *open_to_all)

    assert (code, "no key file is named" in complaint) == (2, True)
    assert "no keys are on record: each process accepts the keys of its own key file" in said


def test_a_coordinator_that_lacks_a_key_ends_with_its_name(old, wakeroll, tmp_path):
    """It must not decide: the other one, with the new file, would assign queues differently."""
    new = rotated(old, tmp_path)
    with coordinator(old, "--only", "coordinate", name="a") as process:
        wait_until(
            lambda: any(status.shard_levels for status in running(old.work_folder).values()),
            "the coordinator decides",
            patience_s=PATIENCE_WITH_SPARK_S,
            state=lambda: log_of(process),
        )
        refused = wakeroll("keys", "publish", "--execute", *where(old, new))
        published = wakeroll("keys", "publish", "--execute", *where(old, new, tmp_path / "elsewhere"))
        wait_until(lambda: not process.is_running, "the coordinator ends", patience_s=PATIENCE_WITH_SPARK_S)
        last = log_of(process).strip().splitlines()[-1]

    assert refused[0] == 2
    assert "lacks the key 'ops-2', and would stop if it became valid; restart it with this key file" in refused[2]
    assert published[0] == 0, published
    assert "has valid keys on record that the key file of this process lacks" in last
    assert "'ops-2' (role operator, fingerprint" in last
