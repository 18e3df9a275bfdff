"""Questions to tables in an S3 store: each command prints the same as for the same tables in a local folder."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.samples import sample
from tests.support.systems.s3_copies import upload
from tests.support.systems.s3_server import BUCKET, S3Server
from wakeroll_model.rows import RECORDED
from wakeroll_pipeline.ledger.delta_files import open_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.small_files import StorageFailed
from wakeroll_pipeline.storage.write_probes import refuse_unconditional

pytest.importorskip("moto.server", reason="needs the package moto: pip install 'moto[s3,server]'")

pytestmark = pytest.mark.spark  # the tables are made with it

QUESTIONS = (
    "groups",
    "describe billing --holds",
    "lag",
    "lag billing",
    "state",
    "explain --group billing --queue orders-3",
    "replay",
    "what-if --group billing --add 1",
    "check",
    "sql select+trigger,+count(*)+as+times+from+rebalances+group+by+trigger+order+by+trigger",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A store, and an environment in which each client finds it."""
    with (
        S3Server(tmp_path_factory.mktemp("s3")) as server,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def home(store: S3Server, day: Path) -> str:
    """The tables of `day`, copied into the store; return the URI of their home."""
    upload(day, store.place("day/warehouse"))
    return f"s3a://{BUCKET}/day"


@pytest.mark.parametrize("question", sample(QUESTIONS, quick=6))
def test_an_answer_is_that_of_a_local_folder(day, home, wakeroll, monkeypatch, tmp_path, question):
    monkeypatch.chdir(tmp_path)
    words = [word.replace("+", " ") for word in question.split()]
    local = wakeroll(*words, "--home", str(day.parent))
    remote = wakeroll(*words, "--home", home)

    assert local[0] == 0
    assert told(remote) == told(local)


def told(answer: tuple[int, str, str]) -> tuple[int, str, str]:
    """Return an answer without the name of the folder that it wrote a page to, and without its age."""
    code, said, complaint = answer
    return code, re.sub(r"[\d.]+ s ago", "s ago", said.partition("Data Docs")[0]), complaint


@pytest.mark.operate
def test_marts_are_built_in_the_store_and_continued(home, wakeroll, monkeypatch, tmp_path):
    """The second run merges into the tables of the first one."""
    monkeypatch.chdir(tmp_path)
    answers = [wakeroll("marts", "--home", home) for _ in range(2)]
    owners = wakeroll("sql", "select count(*) as owned from current_ownership", "--home", home)

    assert [code for code, _, _ in answers] == [0, 0], answers
    assert f"tables in s3a://{BUCKET}/day/warehouse/marts" in answers[0][1]
    assert (owners[0], owners[2]) == (0, "")


@pytest.mark.usefixtures("home")
def test_an_earlier_version_of_a_table_is_read(store):
    place = store.place("day/warehouse")
    newest = open_delta(place / "events").version()

    with duck_ledger(place, {table.name: 1 for table in RECORDED}) as then, duck_ledger(place) as now:
        assert then.versions["events"] == 1 < newest
        count = "select count(*) as n from events"
        assert then.rows(count)[0].n < now.rows(count)[0].n


@pytest.mark.usefixtures("home")
def test_only_the_needed_parts_of_a_file_are_read(store):
    """A whole table is read at once by none of the questions that a page asks."""
    store.requests.clear()
    with duck_ledger(store.place("day/warehouse")) as ledger:
        ledger.rows("select max(at_ms) as last_ms from events")
    ranges = [one.headers.get("Range") for one in store.seen("GET", r"\.parquet") if "_delta_log" not in one.path]

    assert ranges
    assert None not in ranges


def test_no_command_needs_pyarrow_or_spark(home):
    """The extras `ask` and `s3` are enough."""
    program = (
        "import sys\n"
        "for name in ('pyspark', 'py4j', 'delta', 'pandas', 'numpy', 'pyarrow', 'boto3'): sys.modules[name] = None\n"
        "from wakeroll_pipeline.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "groups", "--home", home], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "billing" in done.stdout


def test_a_local_home_needs_no_package_for_s3(day):
    """`wakeroll groups` starts as quickly as before: nothing for S3 is imported."""
    program = (
        "import sys\nfor name in ('obstore', 'fsspec'): sys.modules[name] = None\n"
        "from wakeroll_pipeline.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "groups", "--home", str(day.parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    missing = subprocess.run(
        [sys.executable, "-c", program, "groups", "--home", f"s3a://{BUCKET}/day"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert missing.returncode == 2
    assert "needs the extra `s3` (obstore is missing); install it with: pip install 'wakeroll[s3]'" in missing.stderr


def test_a_store_that_refuses_every_fifth_request_is_asked_again(day, home, store, wakeroll):
    local = wakeroll("groups", "--home", str(day.parent))[1].partition("as of the end")[0]
    with store.failing(every_nth=5):
        assert wakeroll("groups", "--home", home)[1].partition("as of the end")[0] == local
    assert "billing" in local
    assert [one.status for one in store.requests].count(503) >= 1


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        (f"s3a://{BUCKET}/nothing", f"wakeroll: no tables in s3a://{BUCKET}/nothing/warehouse; start `wakeroll up`"),
        ("s3a://no-such-bucket/day", "wakeroll: cannot read s3a://no-such-bucket/day/warehouse: "),
        ("s3a://bucket/a b", "a remote path has letters, digits"),
    ],
)
def test_what_is_not_there_is_one_sentence(wakeroll, uri, sentence):
    code, said, complaint = wakeroll("groups", "--home", uri)

    assert code in (2, 3)
    assert said == ""
    assert sentence in complaint
    assert complaint.count("\n") == 1


@pytest.mark.usefixtures("home")
def test_a_dead_store_is_one_sentence_with_a_remedy(store, monkeypatch):
    """Each client tries again for a while first; a test need not wait for that long."""
    from wakeroll_pipeline.storage import object_files

    monkeypatch.setattr(object_files, "_RETRY_S", 1)
    object_files._store.cache_clear()
    with store.failing(is_dead=True), pytest.raises(StorageFailed, match=r"cannot read s3a://bucket/day.*; check the"):
        small_files.exists(store.place("day/warehouse"))
    object_files._store.cache_clear()


def test_doctor_says_that_the_store_refuses_a_second_writer(home, store, wakeroll):
    """A store that ignores the condition would let two processes replace each other's files."""
    _, said, _ = wakeroll("doctor", "--home", home, "--checkpoints", home)

    assert f"ok    storage  {home} can be written, and refuses to create a file twice" in said
    assert small_files.names(store.place("day")) == ["warehouse"]


@pytest.fixture
def reader(store: S3Server, home: str) -> Iterator[str]:
    """The home, for a principal with the policy of docs/security.md."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    [policy] = re.findall(r"```json\n(.*?)```", page.partition("## Readers of the tables")[2], flags=re.DOTALL)
    store.policy = json.loads(policy.replace("wakeroll/", "day/"))
    store.requests.clear()
    yield home
    store.policy = None


@pytest.mark.operate
def test_who_may_only_read_the_tables_can_ask_everything(reader, store, wakeroll, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for question in QUESTIONS:
        words = [word.replace("+", " ") for word in question.split()]
        assert (question, wakeroll(*words, "--home", reader)[0]) == (question, 0)

    assert [one for one in store.requests if one.status == 403 or one.method not in ("GET", "HEAD")] == []


def test_who_may_only_read_the_tables_is_told_so_by_a_command_that_writes(
    reader, store, wakeroll, monkeypatch, tmp_path
):
    """Once, before it does anything, and not for each table."""
    monkeypatch.chdir(tmp_path)
    code, _, complaint = wakeroll("marts", "--home", reader)

    assert code == 3
    assert "cannot write s3a://bucket/day/warehouse/marts/" in complaint
    assert complaint.count("\n") == 1
    with pytest.raises(StorageFailed, match="cannot write s3a://bucket/day/warehouse/"):
        refuse_unconditional(store.place("day/warehouse"))
    assert {one.status for one in store.requests if one.method in ("PUT", "POST", "DELETE")} == {403}


@pytest.mark.usefixtures("store")
def test_credentials_are_in_no_message(wakeroll):
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    code, said, complaint = wakeroll("doctor", "--home", "s3a://no-such-bucket/day")

    assert code == 1
    assert "no-such-bucket" in said
    assert secret not in said + complaint
