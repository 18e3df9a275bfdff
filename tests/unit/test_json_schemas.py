"""The JSON Schemas in docs/schemas: they are those of the declarations, and hold for decisions of every release."""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from tests.support.ledgers import a_day, two_eras
from wakeroll_model.decisions import Kind
from wakeroll_model.records import Record, read_event
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.cli.answer_schemas import answer_schemas
from wakeroll_pipeline.questions.json_schemas import schemas

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "schemas"
GOLDEN = sorted((ROOT / "tests" / "golden" / "release-0.1").glob("*.gz"))


def logs_of_release_0_1() -> Iterator[dict[str, Any]]:
    for path in GOLDEN:
        yield msgspec.msgpack.decode(gzip.decompress(path.read_bytes()))


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((FOLDER / name).read_text(encoding="utf-8")))


def errors_in(values: Iterable[dict[str, Any]], name: str) -> list[str]:
    """Return what is wrong with values, each by the one part of a schema that its kind names.

    The schema accepts what one of its 20 parts accepts, and is asked itself about the first value of each kind.
    """
    whole, found = validator(name), []
    kind, parts = whole.schema["discriminator"]["propertyName"], whole.schema["discriminator"]["mapping"]
    assert [{"$ref": part} for part in parts.values()] == whole.schema["anyOf"]
    checks: dict[str, jsonschema.Draft202012Validator] = {}
    for value in values:
        if value[kind] not in checks:
            found += [error.message for error in whole.iter_errors(value)]
            checks[value[kind]] = whole.evolve(schema={"$ref": parts[value[kind]]})
        found += [error.message for error in checks[value[kind]].iter_errors(value)]
    return found


ALL = {**schemas(), **answer_schemas()}


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_files_are_those_of_the_declarations(name, request):
    """``pytest --rewrite`` writes them."""
    path, text = FOLDER / name, json.dumps(ALL[name], indent=2) + "\n"
    if request.config.getoption("--rewrite"):
        path.write_text(text, encoding="utf-8")

    assert path.read_text(encoding="utf-8") == text
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_every_stored_decision_is_valid():
    """Of release 0.1, whose rows ledgers still hold, and of this one."""
    here = [encode_decision(decision) for story in (a_day(), two_eras()) for decision in story.decisions]
    before = [text for log in logs_of_release_0_1() for text in log["decisions"]]
    stored = [json.loads(text) for text in (*before, *here)]

    assert errors_in(stored, "decisions.json") == []
    assert len(stored) > 1_000
    assert {one["kind"] for one in stored} > set(Kind.__args__) - {"failed", "lock"}


def test_every_accepted_event_is_valid():
    """Records that the model rejects need not be."""
    accepted = []
    for log in logs_of_release_0_1():
        place = log["topic"], log["partition"]
        for offset, (at_ms, key, value) in enumerate(log["records"]):
            event = read_event(Record(*place, offset, at_ms, key, value), log["partitions"])
            if type(event).__name__ != "Rejected":
                accepted.append(json.loads(value))

    assert errors_in(accepted, "events.json") == []
    assert len(accepted) > 1_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "unheard"},
        {"kind": "membership"},
        {"kind": "membership", "group_id": "billing", "client_id": "c1", "change": "left", "epoch": "three"},
        {"kind": "membership", "group_id": "bil ling", "client_id": "c1", "change": "left", "epoch": 3},
        {"kind": "membership", "group_id": "billing", "client_id": "c1", "change": "vanished", "epoch": 3},
    ],
)
def test_what_is_no_decision_is_not_valid(wrong):
    assert not validator("decisions.json").is_valid(wrong)


def test_a_field_of_a_later_release_and_a_word_of_an_earlier_one_are_valid():
    said = {"kind": "membership", "group_id": "billing", "client_id": "c1", "change": "replaced", "epoch": 3}

    assert validator("decisions.json").is_valid(said | {"since": 7})


def test_doctor_answers_in_its_schema(wakeroll, tmp_path):
    """Nothing runs in this home: a script sees which checks fail, and what to do."""
    code, said, complaint = wakeroll("doctor", "--json", "--home", str(tmp_path))
    document = json.loads(said)

    assert (code, complaint) == (document["exit_code"], "")
    assert [one["fix"] for one in document["checks"] if one["name"] == "jobs"] == [
        "start `wakeroll up` or `wakeroll run`"
    ]
    validator("doctor.json").validate(document)
