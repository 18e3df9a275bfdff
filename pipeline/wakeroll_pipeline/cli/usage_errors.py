"""Errors in the arguments of a command: one line that names the right value, as for all other errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from wakeroll.errors import InvalidUsage

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # Typer does not export it


class OneLineErrors(TyperGroup):
    """A group of commands; instead of a frame of several lines, an error in the arguments is an `InvalidUsage`."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Parse the options before the command."""
        with _as_one_line():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest, and run the command."""
        with _as_one_line():
            return super().invoke(ctx)


@contextmanager
def _as_one_line() -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if "\n" in message:  # the help text of a group of commands without a command
            raise
        context = getattr(error, "ctx", None)
        raise InvalidUsage(_sentence(message, context)) from None


def _sentence(message: str, context: Any) -> str:
    text = " ".join(message.split()).rstrip(".")
    # The words of pydantic, by which Typer reads values.
    text = (
        text.replace(": Value error, ", ": ")
        .replace(": Input should be ", ": it must be ")
        .partition(", unable to ")[0]
    )
    if context is None:
        return text
    if text.startswith("Missing argument"):
        usage = " ".join(context.command.get_usage(context).split()).removeprefix("Usage: ")
        return f"{text}; usage: {usage.replace('{', '').replace('}', '')}"
    return f"{text}; see `{context.command_path} --help`"
