"""Valid values in words, from declared types: for the errors of the SDK, the commands and the settings."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

_MOST_SHOWN = 200
_UNBOUNDED = 2**53
"""A larger bound is only that of JSON numbers, and is left out of errors."""
_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<item>\d+|\.\.\.)\]")
_BEGIN, _END = r"\A", r"\Z"
_CHARACTERS = re.compile(r"\\A\[(?P<set>[^]]+)\]\{(?P<least>\d+),(?P<most>\d+)\}\\Z")


def shown(value: object) -> str:
    """Return a value as text of at most 200 characters, in one line."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def problem_of(name: str, value: object, declared: Any, error: Exception) -> str:
    """Return the sentence about a value that does not match its declared type.

    Args:
        name: the user's name for the value.
        value: the user's value.
        declared: the type, with its bounds.
        error: msgspec's error about the value, or the error that it is nested too deeply.
    """
    place = _PLACE.search(str(error))
    steps = list(_STEP.finditer(place["path"])) if place else []
    kind = inspect.type_info(declared)
    for step in steps:
        kind = _inside(kind, step)
    part = " of ".join(_part(step) for step in reversed(steps))
    if place and place["key"]:
        part, kind = "each name" + (f" in {part}" if part else ""), _plain(kind)
        kind = kind.key_type if isinstance(kind, inspect.DictType) else kind
    return f"{name} is {shown(value)}; {part or 'it'} must be {words_of(kind)}"


def problem_in(values: Mapping[str, Any], struct: type[msgspec.Struct], *, strict: bool = True) -> str:
    """Return the sentence about the first of these values that does not match the field of its name; empty if all do.

    Args:
        values: by name of the field; other names are ignored.
        struct: declares the fields.
        strict: whether a text is never a number; else it is converted if it is one.
    """
    for field in msgspec.structs.fields(struct):
        if field.name in values:
            try:
                msgspec.convert(values[field.name], field.type, strict=strict)
            except (msgspec.ValidationError, RecursionError) as error:
                return problem_of(field.name, values[field.name], field.type, error)
    return ""


def words_of(kind: inspect.Type) -> str:
    """Describe the valid values of a type, with its bounds: ``a whole number from 1 to 64``."""
    match kind:
        case inspect.Metadata():
            return words_of(kind.type)
        case inspect.UnionType():
            named = [words_of(one) for one in kind.types if not isinstance(one, inspect.NoneType)]
            return _one_of(list(dict.fromkeys(named)))
        case inspect.LiteralType():
            return _one_of([str(value) for value in kind.values])
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.StrType():
            return _text(kind)
        case inspect.DictType() | inspect.StructType():
            return "an object" + _size(kind, "entries")
        case inspect.ListType() | inspect.VarTupleType() | inspect.TupleType():
            return "a list" + _size(kind, "items")
        case _:
            return "JSON"


def _plain(kind: inspect.Type) -> inspect.Type:
    """Return a type without its description, and without None."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return _plain(others[0]) if len(others) == 1 else kind
    return kind


def _inside(kind: inspect.Type, step: re.Match[str]) -> inspect.Type:
    """Return the type of a part of a value."""
    match _plain(kind):
        case inspect.StructType() as found:
            return next((field.type for field in found.fields if field.encode_name == step["field"]), found)
        case inspect.DictType() as found:
            return found.value_type
        case inspect.ListType() | inspect.VarTupleType() as found:
            return found.item_type
        case found:
            return found


def _part(step: re.Match[str]) -> str:
    if step["field"]:
        return step["field"]
    return "each value" if step["item"] == "..." else f"item {int(step['item']) + 1}"


def _one_of(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    low = kind.ge if kind.ge is None or abs(kind.ge) < _UNBOUNDED else None
    high = kind.le if kind.le is None or abs(kind.le) < _UNBOUNDED else None
    if low is not None and high is not None:
        return f" from {low} to {high}"
    told = [
        text
        for bound, text in (
            (kind.gt, "of more than"),
            (low, "of at least"),
            (kind.lt, "of less than"),
            (high, "at most" if low is not None or kind.gt is not None else "of at most"),
        )
        if bound is not None
        for text in (f"{text} {bound}",)
    ]
    return f" {' and '.join(told)}" if told else ""


def _text(kind: inspect.StrType) -> str:
    if kind.pattern is not None:
        found = _CHARACTERS.fullmatch(kind.pattern)
        if found is None:
            return f"text that matches {kind.pattern.removeprefix(_BEGIN).removesuffix(_END)}"
        if found["set"] == " -~":
            return f"{found['least']} to {found['most']} printable ASCII characters"
        return f"{found['least']} to {found['most']} characters of {found['set']}"
    return "text" + _size(kind, "characters")


def _size(kind: Any, unit: str) -> str:
    least, most = getattr(kind, "min_length", None), getattr(kind, "max_length", None)
    if least and most:
        return f" of {least} to {most} {unit}"
    if least == 1:
        return ", not empty"
    return f" of at most {most} {unit}" if most else ""
