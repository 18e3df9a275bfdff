"""Keys are rotated on a running deployment: by records, while key files change process by process."""

import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.systems.page_client import PageClient
from tests.support.systems.replicas import coordinator, log_of
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Admin, Consumer
from wakeroll.errors import NotReachable
from wakeroll.keys import InvalidKeys, add_key, new_client_key, new_key, public_half, read_keys
from wakeroll_pipeline.kafka.new_deployment import ensure_deployment
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
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


def test_a_recorder_that_cannot_sign_leaves_the_begin_to_a_coordinator(old, tmp_path):
    """It may start first; the deployment would begin at the first level, and without keys on record."""
    private, public = tmp_path / "private.toml", tmp_path / "public.toml"
    for role, key_id in (("operator", "ops-1"), ("observer", "obs-1")):
        key = new_key(role, key_id, "ed25519")
        add_key(private, key)
        add_key(public, public_half(key))
    decides, recorder = (structs.replace(old, keys=str(file)) for file in (private, public))

    with pytest.raises(NotReachable, match="groups does not exist, and a coordinator must begin it: the key 'ops-1'"):
        ensure_deployment(recorder, decides=False)
    assert ensure_deployment(decides) == []
    assert ensure_deployment(recorder, decides=False) == []


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


def process_of(settings: Settings, command: str, *options: str) -> Child:
    """Describe a process of a role, in an empty folder of its own."""
    folder = Path(settings.home).parent / command
    folder.mkdir()
    return Child(
        f"wakeroll {command}",
        [sys.executable, "-m", "wakeroll_pipeline.cli", command, *options],
        log=settings.logs / f"{command}.log",
        env={**os.environ, **settings.environment()},
        folder=folder,
    )


def memory_of(process: Child) -> Iterator[bytes]:
    """Yield the readable parts of the memory of a process."""
    maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
    with Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
        for first, after in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) r", maps, flags=re.MULTILINE):
            start, end = int(first, 16), int(after, 16)
            try:
                memory.seek(start)
                yield memory.read(end - start)
            except (OSError, OverflowError):  # parts of the kernel
                continue


def found_in(process: Child, keys: list[bytes]) -> list[bool]:
    """Return whether the memory of a process has each key, in bytes or as the text of a key file."""
    texts = [(key, key.hex().encode()) for key in keys]
    found = [False] * len(keys)
    for part in memory_of(process):
        found = [has or any(text in part for text in its) for has, its in zip(found, texts, strict=True)]
    return found


def shown(client: PageClient) -> str:
    """Return the page of the group."""
    return client.get("/groups/billing").plain


@pytest.mark.operate
def test_a_page_and_a_coordinator_with_public_keys_only(broker, wakeroll, tmp_path):
    """They verify an operator's change, and nobody who gets into them can sign one: they have never had a secret."""
    secrets = tmp_path / "of operators"
    secrets.mkdir()
    everything, observer, public = secrets / "all.toml", secrets / "observer.toml", tmp_path / "public.toml"
    files = ["--file", str(everything), "--observer", str(observer), "--public", str(public)]
    assert wakeroll("keys", "ensure", *files)[0] == 0
    keys = read_keys(everything).all
    private, publics = [key.secret for key in keys], [key.public_key for key in keys]
    verifying = Settings(
        bootstrap=broker.bootstrap,
        prefix=f"public-{uuid.uuid4().hex[:6]}",
        home=str(tmp_path / "home"),
        checkpoints=str(tmp_path / "checkpoints"),
        keys=str(public),
    )
    observing, operating = (structs.replace(verifying, keys=str(file)) for file in (observer, everything))
    connection = {"bootstrap": broker.bootstrap, "prefix": verifying.prefix}
    with ExitStack() as stack:
        coordinates = stack.enter_context(coordinator(verifying, "--only", "coordinate", name="coordinator"))
        stack.enter_context(process_of(observing, "observe"))
        wait_until(
            lambda: any(status.shard_levels for status in running(verifying.work_folder).values()),
            "the coordinator decides about ticks",
            patience_s=PATIENCE_WITH_SPARK_S,
            state=lambda: log_of(coordinates),
        )
        cannot_sign = wakeroll("upgrade", "--execute", *where(verifying))
        raised = wakeroll("upgrade", "--execute", *where(operating))
        published = wakeroll("keys", "publish", "--execute", *where(operating))
        page = stack.enter_context(process_of(verifying, "serve", "--port", "0"))
        address = wait_until(
            lambda: re.search(r"http://[0-9.:]+", log_of(page)), "the page is served", state=lambda: log_of(page)
        )
        client = PageClient(address[0])
        wait_until(lambda: client.get("/readyz").status == 200, "the page has read the log", state=lambda: log_of(page))

        with (
            Consumer("billing", ["orders"], **connection, client_id="c1") as consumer,
            Admin(**connection, keys=everything) as admin,
            Admin(**connection, keys=public) as nobody,
        ):
            wait_until(lambda: consumer.poll(0.1) is None and "c1" in shown(client), "the page shows the member")
            admin.configure("billing", settle_ms=1_234)
            wait_until(lambda: "1.234 s" in shown(client), "the page shows the change", state=lambda: shown(client))
            with pytest.raises(InvalidKeys, match=r"the key 'operator-\w+' of the role operator is a public key"):
                nobody.configure("billing", settle_ms=1)
            add_key(everything, new_key("operator", "ops-2", "ed25519"))
            rotated_to = wakeroll("keys", "publish", "--execute", *where(operating))
            with Admin(**connection, keys=everything) as successor:
                successor.configure("billing", settle_ms=2_345)
            wait_until(lambda: "2.345 s" in shown(client), "the page shows the change by a key that no file of its has")
        in_memory = [found_in(process, [*private, *publics]) for process in (page, coordinates)]

    assert (cannot_sign[0], "is a public key, which only verifies" in cannot_sign[2]) == (2, True), cannot_sign
    assert "is at feature level 1, but Ed25519 signatures count from level 4 on" in log_of(coordinates)
    assert (raised[0], published[0], rotated_to[0]) == (0, 0, 0), (raised, published, rotated_to)
    assert in_memory == [[False, False, True, True]] * 2
    files_of_both = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != secrets]
    contents = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in files_of_both}
    assert {"public.toml", "home/logs/serve.log"} <= contents.keys()
    assert [
        name for name, text in contents.items() for key in private if key in text or key.hex().encode() in text
    ] == []
