"""JSON Schemas of the decisions and of the events, generated from the declarations in `model`.

They are stored in docs/schemas. Fields without a declaration are allowed, because a later release may add them.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import AnyEvent
from wakeroll_pipeline.questions.quality.schema_rules import FORMER_WORDS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> Mapping[str, dict[str, Any]]:
    """Return file name -> schema: of a value of `decisions.json`, and of a record of a control topic."""
    decisions = msgspec.json.schema(AnyDecision)
    for declared, fields in FORMER_WORDS.items():
        for field, words in fields.items():
            # A row is no decision; it has no schema of its own.
            if (found := decisions["$defs"].get(declared.__name__)) is not None:
                enum = found["properties"][field]["enum"]
                enum.extend(word for word in words if word not in enum)
    return {
        "decisions.json": titled(decisions, "A decision: a value of the column `json` of the table `decisions`"),
        "events.json": titled(msgspec.json.schema(AnyEvent), "An event: a record of a control topic of wakeroll"),
    }


def titled(schema: dict[str, Any], title: str) -> dict[str, Any]:
    """Return msgspec's schema in the dialect of the files, with a title."""
    for part in _objects(schema):
        if isinstance(pattern := part.get("pattern"), str):
            # In JSON Schema, a pattern is a regular expression of ECMA 262.
            part["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
        if isinstance(description := part.get("description"), str):
            # Python 3.13 and newer remove the indentation of docstrings themselves.
            part["description"] = inspect.cleandoc(description)
    return {"$schema": _DIALECT, "title": title, **schema}


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    match part:
        case dict():
            yield part
            for inner in part.values():
                yield from _objects(inner)
        case list():
            for inner in part:
                yield from _objects(inner)
