"""`wakeroll happened`: what the page shows of a period, in a terminal and as JSON."""

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import jsonschema
import pytest
from prometheus_client import CollectorRegistry

from tests.support.control_log import START_MS
from tests.support.delta_tables import write_tables
from tests.support.ledgers import PARTITIONS, a_day, any_story
from tests.support.samples import sample
from tests.support.systems.web_site import answering
from wakeroll.connection import Topics
from wakeroll.epoch_ms import EpochMs
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.live.live_model import ViewSource
from wakeroll_pipeline.serve.history import History
from wakeroll_pipeline.serve.web_app import WebApp

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/happened.json").read_text(encoding="utf-8"))
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def happened(tmp_path, wakeroll) -> Ask:
    return lambda *words: wakeroll("happened", *words, "--home", str(tmp_path))


@pytest.mark.parametrize("seed", sample(range(4), quick=1))
def test_the_command_prints_what_the_page_shows(tmp_path, happened, seed):
    """One computation: an operator with a browser and one with a terminal see the same events."""
    warehouse = tmp_path / "warehouse"
    write_tables(warehouse, any_story(seed))
    source = ViewSource(read_ledger(warehouse, Topics(), PARTITIONS))
    app = WebApp(source, CollectorRegistry(), ["127.0.0.1"], history=History(warehouse, Topics(), PARTITIONS))
    with answering(app) as site:
        first = json.loads(happened("--json")[1])["happened"]["events"][0]
        for group in ([], [first["group_id"]]):
            path = "".join(f"/groups/{one}" for one in group) + "/happened"
            code, said, complaint = happened(*group, "--json")
            found = json.loads(said)
            pages = [
                json.loads(get(f"{site}/api{path}", page=number))
                for number in range(1, 2 + found["happened"]["total"] // 100)
            ]
            rows = re.findall(r'<li class="k-.*?</li>', get(f"{site}{path}"), flags=re.DOTALL)
            lines = happened(*group)[1].splitlines()

            assert (code, complaint) == (0, "")
            assert [one for page in pages for one in page["happened"]["events"]] == found["happened"]["events"]
            for page in pages:
                assert {**page, "happened": {**page["happened"], "events": []}} == {
                    **found,
                    "happened": {**found["happened"], "events": []},
                    "page": page["page"],
                }
            if len(pages) == 1:
                name = f" {group[0]} " if group else " "
                shown = [words_of(row.replace("</a>", f"</a>{name}", 1)) for row in rows]
                assert shown == [words_of(line) for line in lines if re.match(r"\d\d:\d\d:\d\d ", line)]
                assert len(shown) > 2


def get(address: str, **params: object) -> str:
    with urlopen(f"{address}?{urlencode(params)}", timeout=60) as answer:
        return answer.read().decode()


def words_of(text: str) -> list[str]:
    return unescape(re.sub(r"<[^>]*>", " ", text)).split()


def second(number: int) -> str:
    return str(EpochMs(START_MS + number * 1_000))


def test_a_period_has_its_events_and_counts(tmp_path, happened):
    write_tables(tmp_path / "warehouse", a_day())
    code, said, complaint = happened("billing", "--since", second(5), "--until", second(6))
    document = json.loads(happened("billing", "--since", second(5), "--until", second(6), "--json")[1])

    assert (code, complaint) == (0, "")
    assert said.splitlines()[0] == f"What happened to billing from {second(5)} to {second(6)}"
    assert "4 queues: c1 → c2 (released): orders-4, orders-5, orders-6, orders-7" in said
    assert said.index("c2: joined") < said.index("c1 → c2 (released)")
    assert "as of the end" not in said
    assert document["happened"]["total"] == len(document["happened"]["events"])
    jsonschema.validate(document, SCHEMA)


def test_a_period_in_which_nothing_happened_is_an_answer(tmp_path, happened):
    write_tables(tmp_path / "warehouse", a_day())
    code, said, _ = happened("audit", "--since", second(1), "--until", second(2))

    assert (code, said.splitlines()[1]) == (
        0,
        "Nothing: no change of members, rebalance, hand-over, reset or rejection.",
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("biling", "--since", second(0), "--until", second(9)), "no group 'biling'; did you mean billing?"),
        (("--since", second(9), "--until", second(8)), f"--since is {second(9)}; it must not be after --until, "),
        (("--until", "2001-01-01T00:00:00Z"), f"the archived log has records from {second(0)} to "),
        (("--follow", "--until", second(9)), "--follow has no end; leave out --until"),
    ],
)
def test_a_wrong_period_or_group_is_one_line(tmp_path, happened, words, sentence):
    write_tables(tmp_path / "warehouse", a_day())
    code, said, complaint = happened(*words)

    assert (code, said) == (2, "")
    assert complaint.startswith(f"wakeroll: {sentence}")
    assert complaint.count("\n") == 1
