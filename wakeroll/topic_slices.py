"""The number of slices into which the partitions of a topic are cut, from the text of an operator."""

from collections.abc import Iterable
from typing import cast

from wakeroll.argument_checks import checked
from wakeroll.errors import InvalidUsage
from wakeroll.expectations import shown
from wakeroll_model.events import TopicSlices
from wakeroll_model.slices import MOST


def slices_in(name: str, texts: Iterable[str]) -> dict[str, int]:
    """Parse TOPIC=N of each topic; 1 stands for a topic that is not cut.

    >>> slices_in("--slices", ["orders=8", "payments=1"])
    {'orders': 8, 'payments': 1}

    Args:
        name: of the option or field, for the error.
        texts: one for each topic.

    Raises:
        InvalidUsage: a text has another form, the number is not valid, or a topic is named twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        topic, _, number = text.rpartition("=")
        if not topic or not (number.isascii() and number.isdigit() and len(number) <= 5):
            raise InvalidUsage(f"{name} is {shown(text)}; it must be TOPIC=N, such as orders=8")
        if topic in found:
            raise InvalidUsage(f"{name} names the topic {topic} twice: {topic}={found[topic]} and {text}")
        found[topic] = int(number)
    return checked_slices(name, found) if found else {}


def checked_slices(name: str, given: object) -> dict[str, int]:
    """Return topic -> number of slices of each of its partitions, if they are valid.

    Raises:
        InvalidUsage: they are not; the message names the argument, the value and what is expected.
    """
    if isinstance(given, dict):
        for topic, number in given.items():
            is_number = isinstance(number, int) and not isinstance(number, bool)
            if not is_number or not 1 <= number <= MOST or number & (number - 1):
                raise InvalidUsage(
                    f"{name}: {topic} is {shown(number)}; it must be a power of two from 1 to {MOST}, 1 if it is not "
                    "cut"
                )
    return cast(dict[str, int], checked(name, given, TopicSlices))
